"""Renames nodes that have no name of their own, finds names by patterns, and makes trees of names.

OpenVINO generates a name for a node without one: its type and a number that counts the nodes of the process
("Constant_73084"). Placements know nodes by name, so a placement with such names would fit no other process's copy of
the model. The names that nodes get here are the same in every process.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ov_hsdag.utils.lazy import ov

GENERATED = re.compile(r"[A-Z][A-Za-z0-9]*_[0-9]+")
"""Pattern of the names that OpenVINO generates for nodes without a name."""

# Characters of a name up to which other nodes are named after it. Without a limit, thousands of consecutive nodes
# without names would get names of thousands of parts.
_LONGEST = 256

_NOT_COMPUTING = ("Constant", "Parameter", "Result")  # types of nodes that compute nothing


def name_generated(model: ov.Model, known: Collection[str] | None = None, *, of_copy: bool = False) -> None:
    """Renames nodes with generated friendly names, in place, to names that depend only on the model.

    An operation is named after the first input with a name ("conv1/Transpose"). Where that name would be very long, it
    is named after that input's first ancestor instead. A Constant is named after its first consumer and the number of
    the input ("conv1/Transpose/Constant_1"). Any other node is named after its type.

    Args:
        model: the model; changed in place.
        known: names from before the transformations. They stay, though they may look generated, as names in an IR do.
            Any other name that begins like a generated one is replaced, because transformations hand such names on from
            node to node. By default only a node's own generated name is replaced, since a user may have chosen any
            other.
        of_copy: whether the model is a private copy of one that was made in memory. Its nodes have the generated names
            of the originals, so every name that consists of the node's own type and a number counts as generated.
    """
    order = model.get_ordered_ops()
    names = [node.get_friendly_name() for node in order]
    generated = sorted(_generated(order, names, known, of_copy))
    if not generated:
        return
    renaming = _Renaming.of(order, names, generated)
    is_source = {number: not order[number].get_input_size() for number in generated}
    for number in generated:
        if not is_source[number]:
            renaming.name_after_input(number)
    for number in generated:
        if is_source[number]:
            renaming.name_after_reader(number)


def _generated(
    order: Sequence[ov.Node], names: Sequence[str], known: Collection[str] | None, of_copy: bool
) -> Iterator[int]:
    """Yields the numbers of the nodes whose names count as generated.

    Args:
        order: the nodes.
        names: their friendly names.
        known: names that stay, or None, see `name_generated`.
        of_copy: whether the model is a private copy, see `name_generated`.
    """
    for number, (node, name) in enumerate(zip(order, names, strict=True)):
        if known is not None:
            if name not in known and GENERATED.match(name):
                yield number
        elif name == node.get_name() or (of_copy and _is_numbered(name, node.get_type_name())):
            yield number


@dataclass(frozen=True, eq=False)
class _Renaming:
    """Gives nodes of a model new names, each of which is in use once.

    Attributes:
        order: the nodes in topological order.
        position: number of each node by its instance number.
        named: whether each node has a name that others may be named after, [nodes].
        used_names: names in use.
        ancestor: name of the first ancestor of each node that was named after an input.
        latest: number at the end of the last of equal names.
    """

    order: Sequence[ov.Node]
    position: Mapping[int, int]
    named: list[bool]
    used_names: set[str]
    ancestor: dict[int, str]
    latest: dict[str, int]

    @classmethod
    def of(cls, order: Sequence[ov.Node], names: Sequence[str], generated: Collection[int]) -> _Renaming:
        """Begins with the names that stay.

        Args:
            order: the nodes in topological order.
            names: their names.
            generated: numbers of the nodes that get new names.
        """
        position = {node.get_instance_id(): number for number, node in enumerate(order)}
        named = [True] * len(order)
        for number in generated:
            named[number] = False
        used_names = {name for name, stays in zip(names, named, strict=True) if stays}
        return cls(order, position, named, used_names, {}, {})

    def name_after_input(self, number: int) -> None:
        """Names a node after its first input with a name, or after that input's ancestor; without one, after its type.

        Args:
            number: number of the node.
        """
        node = self.order[number]
        sources = (self.position[value.get_node().get_instance_id()] for value in node.input_values())
        source = next((source for source in sources if self.named[source]), None)
        if source is None:
            self._give(number, node.get_type_name())
            return
        source_name = self.order[source].get_friendly_name()
        self.ancestor[number] = self.ancestor.get(source, source_name)
        base = source_name if len(source_name) <= _LONGEST else self.ancestor[number]
        self._give(number, f"{base}/{node.get_type_name()}")

    def name_after_reader(self, number: int) -> None:
        """Names a node after its first consumer and the number of the input there; without one, after its type.

        Args:
            number: number of the node.
        """
        node = self.order[number]
        readers = [
            (self.position[reader.get_node().get_instance_id()], reader.get_index())
            for output in node.outputs()
            for reader in output.get_target_inputs()
        ]
        if not readers:
            self._give(number, node.get_type_name())
            return
        reader, port = min(readers)
        self._give(number, f"{self.order[reader].get_friendly_name()}/{node.get_type_name()}_{port}")

    def _give(self, number: int, name: str) -> None:
        """Renames a node, with a number at the end if the name is in use."""
        free_name, suffix = name, self.latest.get(name, 1)
        while free_name in self.used_names:
            suffix += 1
            free_name = f"{name}_{suffix}"
        self.latest[name] = suffix
        self.used_names.add(free_name)
        self.named[number] = True
        self.order[number].set_friendly_name(free_name)


def _is_numbered(name: str, type_name: str) -> bool:
    """Whether a name consists of a type and a number, as "Result_15" does."""
    return name.startswith(f"{type_name}_") and name[len(type_name) + 1 :].isdecimal()


def operations_of(model: ov.Model) -> list[ov.Node]:
    """Lists the operations of a model in topological order.

    Constants, Parameters and Results are left out, and so are conversions that decompress weights.
    """
    return [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() not in _NOT_COMPUTING and "decompression_0" not in node.get_rt_info()
    ]


def matching(names: Sequence[str], pattern: str) -> list[int]:
    """Returns the indices of the names that match a pattern, in which `*` and `?` are wildcards as in file names."""
    from fnmatch import fnmatchcase

    # Brackets are wildcards, too, so a name with brackets is also compared as it is.
    return [number for number, name in enumerate(names) if name == pattern or fnmatchcase(name, pattern)]


def similar(pattern: str, names: Collection[str]) -> str:
    """Returns the end of an error message about a pattern that matches no name: similar names, or how to write it."""
    import difflib

    near = difflib.get_close_matches(pattern, set(names), n=3)
    return f"similar: {', '.join(near)}" if near else f"* stands for any characters: '*{pattern.strip('*')}*'"


# A part of a name with the separators before it, and at the end of the name behind it: all parts joined are the name.
_PART = re.compile(r"[/.]*[^/.]+(?:[/.]+$)?|[/.]+$")

_DEEPEST = 12  # levels of scopes; readers learn nothing from deeper ones


@dataclass(frozen=True)
class NameTree:
    """The names of nodes as a tree of their parts, which takes little memory however long the names are.

    An entry of the tree is a part of a name, such as "/layer1" of "model/layer1/conv", with the entry of the part
    before it. A scope is an entry under which a report shows several nodes together.
    """

    parent: list[int]  # entry of the part before, -1 for a first part, [entries]
    part: list[str]  # text with its separators, [entries]
    name: list[int]  # entry of the last part of each name, [names]
    # entry of the innermost scope of each name, -1 for no scope, [names]. Nodes without a name are called after their
    # input ("x/Add/Relu" reads "x/Add"). Their scope is the named node at the beginning of the name. If that is a
    # Parameter, or the name was generated by OpenVINO ("Transpose_120"), they have the scope of the node before them
    scope: list[int]

    @classmethod
    def of(cls, names: Sequence[str], parameters: Sequence[bool]) -> NameTree:
        """Makes the tree of the names of nodes.

        Args:
            names: friendly names, in topological order.
            parameters: whether each node is a Parameter.
        """
        tree = cls([], [], [], [])
        entries: dict[tuple[int, str], int] = {}
        is_parameter = dict(zip(names, parameters, strict=True))
        previous_scope = -1
        for name in names:
            # `scope` is -1 for none so far, or an entry. Once the name begins with the name of a node, whose entry is
            # the scope, it is -2 - entry and no longer changes. `follows`: the scope is that of the node before.
            entry, path, scope = -1, "", -1
            follows = GENERATED.fullmatch(name) is not None
            bounds = [match.span() for match in _PART.finditer(name)] or [(0, len(name))]
            for number, (begin, end) in enumerate(bounds):
                entry = tree._enter(entries, entry, name[begin:end])
                path = name[:end].rstrip("/.")
                if end == len(name) or scope < -1 or follows:
                    continue
                if path in is_parameter:
                    follows, scope = is_parameter[path], -2 - entry
                elif number < _DEEPEST:
                    scope = entry
            tree.name.append(entry)
            scope = previous_scope if follows else -2 - scope if scope < -1 else scope
            tree.scope.append(scope)
            previous_scope = scope
        # A node that other nodes are called after is in the scope of its own name.
        bases = set(tree.scope)
        tree.scope[:] = [entry if entry in bases else scope for entry, scope in zip(tree.name, tree.scope, strict=True)]
        return tree

    def put_together(self, members: Sequence[int], called: str) -> None:
        """Moves names into a new scope, which lies within the scope of the last of them.

        Args:
            members: numbers of the names.
            called: name of the new scope.
        """
        self.parent.append(self.scope[members[-1]])
        self.part.append(f"/{called}")
        for name in members:
            self.scope[name] = len(self.part) - 1

    def _enter(self, entries: dict[tuple[int, str], int], parent: int, part: str) -> int:
        """Returns the entry of a part of a name, and adds it to the tree if it is new.

        Args:
            entries: all entries by parent and part; a new one is added.
            parent: entry of the part before; -1 for a first part.
            part: the text.
        """
        entry = entries.get((parent, part))
        if entry is None:
            entry = entries[parent, part] = len(self.part)
            self.parent.append(parent)
            self.part.append(part)
        return entry
