"""Names for nodes that have none: the same in every process.

OpenVINO calls a node that nobody named after its type and a number that counts the nodes of the process
("Constant_73084"). Placements know nodes by name, and one in such names fits no other process's copy of the model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ov_hsdag.utils.lazy import ov

GENERATED = re.compile(r"[A-Z][A-Za-z0-9]*_[0-9]+")
"""What OpenVINO calls a node that nobody named."""

# Characters of a name up to which others are named after it; thousands of nodes in a row without a name would make
# names of thousands of parts.
_LONGEST = 256

_SILENT = ("Constant", "Parameter", "Result")  # nodes that compute nothing of their own


def name_generated(model: ov.Model, known: Collection[str] | None = None, *, of_copy: bool = False) -> None:
    """Gives nodes with generated friendly names others that follow from the model alone, in place.

    An operation is named after the first named one among its inputs ("conv1/Transpose"), or after that one's own first
    ancestor where the name would be very long, a Constant after its first consumer ("conv1/Transpose/Constant_1": its
    input 1); what has neither is named after its type.

    known: names that were there before and stay, though they may look generated (those of an IR's nodes do); other
    names that begin like a generated one are: transformations hand them on from node to node. None: only a node's own
    generated name is one, for people's names may look like anybody's.
    of_copy: the model is a copy that nobody else sees, of one that was made in memory. Its nodes have the generated
    names of the originals, so a name that is made of the node's own type and a number counts as generated.
    """
    order = model.get_ordered_ops()
    names = [node.get_friendly_name() for node in order]
    if known is None:
        generated = {
            number
            for number, node in enumerate(order)
            if names[number] == node.get_name() or (of_copy and _is_numbered(names[number], node.get_type_name()))
        }
    else:
        new = (number for number, name in enumerate(names) if name not in known)
        generated = {number for number in new if GENERATED.match(names[number])}
    if not generated:
        return
    taken = {name for number, name in enumerate(names) if number not in generated}
    position = {node.get_instance_id(): number for number, node in enumerate(order)}
    named = [number not in generated for number in range(len(order))]
    ancestor: dict[int, str] = {}  # of what was named here
    latest: dict[str, int] = {}  # number at the end of the last one of equal names

    def give(number: int, name: str) -> None:
        free, more = name, latest.get(name, 1)
        while free in taken:
            more += 1
            free = f"{name}_{more}"
        latest[name] = more
        taken.add(free)
        named[number] = True
        order[number].set_friendly_name(free)

    constants = [number for number in sorted(generated) if not order[number].get_input_size()]
    for number in sorted(generated.difference(constants)):
        node = order[number]
        sources = (position[value.get_node().get_instance_id()] for value in node.input_values())
        base = ""
        if (source := next((source for source in sources if named[source]), None)) is not None:
            base = order[source].get_friendly_name()
            ancestor[number] = ancestor.get(source, base)
            base = (base if len(base) <= _LONGEST else ancestor[number]) + "/"
        give(number, base + node.get_type_name())
    for number in constants:
        node = order[number]
        readers = [
            (position[reader.get_node().get_instance_id()], reader.get_index())
            for output in node.outputs()
            for reader in output.get_target_inputs()
        ]
        if readers:
            reader, port = min(readers)
            give(number, f"{order[reader].get_friendly_name()}/{node.get_type_name()}_{port}")
        else:
            give(number, node.get_type_name())


def _is_numbered(name: str, type_name: str) -> bool:
    """Whether a name is a type and a number: "Result_15"."""
    return name.startswith(f"{type_name}_") and name[len(type_name) + 1 :].isdecimal()


def operations_of(model: ov.Model) -> list[ov.Node]:
    """The operations of a model in the order in which they run, without what only widens stored weights."""
    return [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() not in _SILENT and "decompression_0" not in node.get_rt_info()
    ]


def matching(names: Sequence[str], pattern: str) -> list[int]:
    """Numbers of the names that fit a pattern, in which `*` and `?` stand for characters as in names of files."""
    from fnmatch import fnmatchcase

    # A name may have brackets of its own.
    return [number for number, name in enumerate(names) if name == pattern or fnmatchcase(name, pattern)]


def similar(pattern: str, names: Collection[str]) -> str:
    """What to type in place of a pattern that fits none of the names, as the end of an error."""
    import difflib

    near = difflib.get_close_matches(pattern, set(names), n=3)
    return f"similar: {', '.join(near)}" if near else f"* stands for any characters: '*{pattern.strip('*')}*'"


# A part of a name with the separators before it (at the end, behind it): the parts join to the name.
_PART = re.compile(r"[/.]*[^/.]+(?:[/.]+$)?|[/.]+$")

_DEEPEST = 12  # deeper scopes tell nobody anything


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
