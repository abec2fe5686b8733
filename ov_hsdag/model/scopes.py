"""Scopes of the names of operations, such as layers: "encoder.layers.0/MatMul" is in "encoder.layers.0"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ov_hsdag.model.names import GENERATED

# A part of a name with the separators before it (at the end, behind it): the parts join to the name.
_PART = re.compile(r"[/.]*[^/.]+(?:[/.]+$)?|[/.]+$")

# Deeper scopes tell nobody anything.
_DEEPEST = 12


@dataclass(frozen=True)
class NameTree:
    """Names as a tree of their parts, which takes little room however long the names are."""

    parent: list[int]  # entry of the part before, -1 for a first part, [entries]
    part: list[str]  # text, separators included, [entries]
    name: list[int]  # entry of the last part of each name, [names]
    # entry of the innermost scope of each name, -1 for none, [names]. Nodes that nobody named are called after what
    # they read ("x/Add/Relu" reads "x/Add"): their scope is the named node that this begins with. Where that is a
    # Parameter, and of names that OpenVINO made up ("Transpose_120"), it is that of the node before them
    scope: list[int]

    @classmethod
    def of(cls, names: Sequence[str], parameters: Sequence[bool]) -> NameTree:
        """The tree of the names of nodes in topological order; parameters: whether each node is a Parameter."""
        tree = cls([], [], [], [])
        entries: dict[tuple[int, str], int] = {}
        known = dict(zip(names, parameters, strict=True))
        before = -1
        for name in names:
            entry, path, scope = -1, "", -1
            follows = GENERATED.fullmatch(name) is not None
            bounds = [match.span() for match in _PART.finditer(name)] or [(0, len(name))]
            for number, (begin, end) in enumerate(bounds):
                entry = tree._enter(entries, entry, name[begin:end])
                path = name[:end].rstrip("/.")
                if end == len(name) or scope < -1 or follows:
                    continue
                if path in known:
                    follows, scope = known[path], -2 - entry
                elif number < _DEEPEST:
                    scope = entry
            tree.name.append(entry)
            scope = before if follows else -2 - scope if scope < -1 else scope
            tree.scope.append(scope)
            before = scope
        # A node that others are called after is in the scope of its name.
        bases = set(tree.scope)
        tree.scope[:] = [entry if entry in bases else scope for entry, scope in zip(tree.name, tree.scope, strict=True)]
        return tree

    def put_together(self, members: Sequence[int], called: str) -> None:
        """Gives some names a scope of their own, within that of the last of them."""
        self.parent.append(self.scope[members[-1]])
        self.part.append(f"/{called}")
        for name in members:
            self.scope[name] = len(self.part) - 1

    def _enter(self, entries: dict[tuple[int, str], int], parent: int, part: str) -> int:
        found = entries.get((parent, part))
        if found is None:
            found = entries[parent, part] = len(self.part)
            self.parent.append(parent)
            self.part.append(part)
        return found
