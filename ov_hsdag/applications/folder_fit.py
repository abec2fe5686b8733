"""Checks whether all models of a pipeline's folder fit into the devices' memory together.

A part is one model of the folder. The context is the number of tokens that the states of a decoder hold. Need and room
are the bytes that parts require of a device and may have there (`ov_hsdag.placing.memory_fit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.workload import TOKENS, Workload
from ov_hsdag.placing.memory_fit import DEFAULT_CONTEXT, Fit, Need, describe_excess, fit, on_at_most, rooms, together
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

_EMBEDDINGS = "text_embeddings"
"""Prefix of the names of parts that embed the tokens of a prompt for a language model (optimum-intel's name)."""

_EMBEDDED = ("input", *TOKENS)
"""Names that the input of such a part, [batch, tokens], may have."""

_CPU = "CPU"
"""The device that tokenizers run on."""


@dataclass(frozen=True, eq=False)
class Part:
    """A model of a folder.

    Attributes:
        model: the model; it is not changed.
        shapes: example shapes of its inputs, by input name.
        placed: whether `place` decides where the model runs; otherwise HETERO does when it is loaded.
    """

    model: ov.Model
    shapes: Mapping[str, Sequence[int]] | None = None
    placed: bool = True


@dataclass(frozen=True)
class FolderFit:
    """The result of `fit_parts`: whether all models of a folder fit while all of them are loaded.

    Attributes:
        devices: names of the devices, in HETERO's order.
        parts: the result of `fit` by part. A part may have the memory that earlier counted parts leave, see
            `fit_parts`.
        unplaced: names of the parts that `place` leaves to HETERO.
        tokenizers: bytes of the tokenizers' files, which are in the CPU's memory.
        total: memory of all parts on each device that has one, by device.
    """

    devices: tuple[str, ...]
    parts: Mapping[str, Fit]
    unplaced: tuple[str, ...]
    tokenizers: int
    total: Mapping[str, Need]

    @property
    def fits(self) -> bool:
        """Whether all parts fit."""
        return all(part.fits for part in self.parts.values())

    @property
    def needed(self) -> dict[str, int]:
        """Bytes that all parts and tokenizers need together, by device."""
        return {name: need.total for name, need in self.total.items()}

    def __repr__(self) -> str:
        """The verdict, as the first line of the command's output."""
        return folder_verdict(self, "the folder")


def fit_parts(  # noqa: PLR0913 settings, all by keyword
    parts: Mapping[str, Part],
    device: str | Sequence[str],
    *,
    context: int | None = None,
    workload: Workload | str | None = None,
    batch: int = 1,
    tokenizers: int = 0,
    memory: Mapping[str, int | str] | None = None,
    kv_precision: str | None = None,
    profile: Profile | None = None,
    core: ov.Core | None = None,
    report: Callable[[str], None] | None = None,
) -> FolderFit:
    """Checks whether the models of a folder fit into the devices' memory together.

    Tokenizers are counted first, on the CPU. Parts that `place` does not place come next, on the first device that runs
    them, where HETERO loads them. The other parts get the remaining memory, one after the other.

    Args:
        parts: the models by name, in the order in which `place` places them.
        device: the devices, in order of preference.
        context: tokens of context of the parts with states, see `fit`.
        workload: workload of the parts with states, see `fit`.
        batch: sequences at a time of the parts with states, see `fit`.
        tokenizers: bytes of the tokenizers' files.
        memory: limits of all models together, by device, bytes or "8GiB"; by default most of what is free.
        kv_precision: precision of KV caches, see `fit`.
        profile: profile of the devices; built-in ones by default.
        core: Core of the devices; a new one by default.
        report: called with the name of each part before it is counted.

    Returns:
        The results of all parts, and the memory that they need together.

    Raises:
        UserError: bad input, or a model that HETERO does not run.
    """
    counted = Workload.asked(workload, context) or Workload.of_context(DEFAULT_CONTEXT)
    counted = replace(counted, batch=max(counted.batch, batch))
    decoding = {"context": context, "workload": workload, "batch": batch}
    options: dict[str, Any] = {"memory": memory, "kv_precision": kv_precision, "profile": profile, "core": core}
    fits, occupied = dict[str, Fit](), {_CPU: tokenizers}
    for name, part in sorted(parts.items(), key=lambda item: item[1].placed):
        if report is not None:
            report(name)
        shapes = {**prompt_shapes(name, part.model, counted), **(part.shapes or {})} or None
        by_part = {**options, **(decoding if part.model.get_sinks() else {})}
        try:
            fits[name] = fit(part.model, device, shapes=shapes, occupied=occupied, as_loaded=not part.placed, **by_part)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        for used, need in counted_needs(fits[name]).items():
            occupied[used] = occupied.get(used, 0) + need.total
    names = DeviceSet.parse(device).names
    needs = [*map(counted_needs, fits.values()), _tokenizer_needs(tokenizers)]
    by_device = {name: [need[name] for need in needs if name in need] for name in names}
    room = rooms(names, memory or {}, profile, core)
    return FolderFit(
        devices=names,
        parts={name: fits[name] for name in parts},
        unplaced=tuple(name for name, part in parts.items() if not part.placed),
        tokenizers=tokenizers,
        total={name: together(of_device, room[name]) for name, of_device in by_device.items() if of_device},
    )


def prompt_shapes(name: str, model: ov.Model, workload: Workload) -> dict[str, tuple[int, int]]:
    """Example shapes of a part that embeds the tokens of a prompt.

    Args:
        name: name of the part.
        model: the part's model.
        workload: the workload, whose longest prompt is embedded at once.

    Returns:
        Shapes by input name; empty for parts that do not embed tokens.
    """
    if not name.startswith(_EMBEDDINGS):
        return {}
    sizes = (workload.batch, max(workload.prompt, workload.longest_prompt))
    ports = [port for port in model.inputs if port.get_partial_shape().rank == 2]
    return {tensor: sizes for port in ports for tensor in port.get_names() if tensor in _EMBEDDED}


def counted_needs(part: Fit) -> Mapping[str, Need]:
    """Returns the memory that a part occupies, by device.

    A part that fits nowhere counts on the first device that runs it; one that no device runs has no entry.
    """
    if part.needs or not part.singles:
        return part.needs
    first = next(iter(part.singles))
    return {first: part.singles[first]}


def _tokenizer_needs(size: int) -> dict[str, Need]:
    """Returns the memory of tokenizers of `size` bytes, by device; empty where the size is 0."""
    return {_CPU: Need(weights=size, states=0, activations=0, overhead=0, room=None)} if size else {}


def folder_verdict(result: FolderFit, folder: str) -> str:
    """Describes in one line whether all parts fit and where each is; otherwise which do not, and the remedies.

    Args:
        result: the result of `fit_parts`.
        folder: name of the folder in the line.
    """
    contexts = [part.context for part in result.parts.values() if part.context]
    what = f"{folder} with a context of {contexts[0]:,} tokens" if contexts else folder
    if result.fits:
        return f"fits: {what}: {', '.join(_describe_devices(name, part) for name, part in result.parts.items())}"
    return f"does not fit: {what}: {'; '.join(describe_lacking(result))}"


def _describe_devices(name: str, part: Fit) -> str:
    """Names a part that fits, its devices and the longest context that fits there."""
    return f"{name} on {', '.join(part.needs)}{on_at_most(part)}"


def describe_lacking(result: FolderFit) -> list[str]:
    """Describes what each part that does not fit lacks, and the remedy; one text for each such part."""
    return [_describe_lack(result, name, part) for name, part in result.parts.items() if not part.fits]


def _describe_lack(result: FolderFit, name: str, part: Fit) -> str:
    """Describes what a part that does not fit lacks, and the remedy.

    Args:
        result: the result for the folder.
        name: name of the part.
        part: the result for the part.
    """
    if name in result.unplaced:
        lacking = describe_excess(part.split)
        return (
            f"{name} needs {lacking}, where HETERO loads it, as place leaves it alone (--part {name} places it, beside"
            " other parts that are named; ov-hsdag plan places all)"
        )
    other_parts = " beside the other parts" if len(result.parts) > 1 else ""
    most = max((tokens or 0 for tokens in (*part.largest.values(), part.largest_of_splits)), default=0)
    remedy = f" (with a context of {most:,} tokens it does)" if most else ""
    if part.placed:
        return f"{name}, as it is placed, needs {describe_excess(part.split)}{other_parts}{remedy}"
    return f"{name} fits on no device and on no split{other_parts}{remedy}"
