"""Whether all models of a pipeline's folder fit into the memory of devices together."""

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
"""How names of parts begin that read a prompt for the language model."""

_EMBEDDED = ("input", *TOKENS)
"""Names of their input, [batch, tokens]."""

_CPU = "CPU"
"""The device that tokenizers run on."""


@dataclass(frozen=True, eq=False)
class Part:
    """A model of a folder."""

    model: ov.Model  # not changed
    shapes: Mapping[str, Sequence[int]] | None = None  # example shapes of its inputs
    placed: bool = True  # whether `place` decides where it runs; else HETERO does when it is loaded


@dataclass(frozen=True)
class FolderFit:
    """Whether the models of a folder fit, all of them loaded."""

    devices: tuple[str, ...]  # names, in HETERO's order
    parts: Mapping[str, Fit]  # by name; what is counted before a part is taken from the memory that it may have
    unplaced: tuple[str, ...]  # the parts that `place` leaves to HETERO
    tokenizers: int  # bytes of the tokenizers' files, which the CPU has in memory
    total: Mapping[str, Need]  # of all parts on each device that has one

    @property
    def fits(self) -> bool:
        """Whether all parts do."""
        return all(part.fits for part in self.parts.values())

    @property
    def needed(self) -> dict[str, int]:
        """Bytes that all of it needs, by device."""
        return {name: need.total for name, need in self.total.items()}

    def __repr__(self) -> str:
        """The first line of what the command prints."""
        return folder_verdict(self, "the folder")


def fit_parts(
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
    """Whether the models of a folder fit into the devices' memory together.

    Tokenizers come first, on the CPU, then parts that `place` leaves as they are, where HETERO loads them: on the
    first device that runs them. The others get what is left, one after the other.

    Args:
        parts: the models by name, those that `place` places in the order in which it does.
        device: the devices, in order of preference.
        context: as in `fit`, of the parts that have states; so are `workload` and `batch`.
        tokenizers: bytes of the tokenizers' files.
        memory: what all models may have together on a device; by default most of what is free.
        kv_precision: see `fit`; so are `profile` and `core`.
        report: called with the name of each part before it is counted.

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
    """Example shapes of a part that embeds the tokens of a prompt: of all that is read at once; {} of other parts."""
    if not name.startswith(_EMBEDDINGS):
        return {}
    sizes = (workload.batch, max(workload.prompt, workload.longest_prompt))
    ports = [port for port in model.inputs if port.get_partial_shape().rank == 2]
    return {tensor: sizes for port in ports for tensor in port.get_names() if tensor in _EMBEDDED}


def counted_needs(part: Fit) -> Mapping[str, Need]:
    """What a part counts with on each device; where it fits nowhere, all of it on the first device that runs it."""
    if part.needs or not part.singles:
        return part.needs
    first = next(iter(part.singles))
    return {first: part.singles[first]}


def _tokenizer_needs(size: int) -> dict[str, Need]:
    return {_CPU: Need(weights=size, states=0, activations=0, overhead=0, room=None)} if size else {}


def folder_verdict(result: FolderFit, folder: str) -> str:
    """The first line: whether all of it fits, and where each part is; else what does not, and what to do."""
    contexts = [part.context for part in result.parts.values() if part.context]
    what = f"{folder} with a context of {contexts[0]:,} tokens" if contexts else folder
    if result.fits:
        return f"fits: {what}: {', '.join(_where(name, part) for name, part in result.parts.items())}"
    return f"does not fit: {what}: {'; '.join(describe_lacking(result))}"


def _where(name: str, part: Fit) -> str:
    """Where a part that fits is."""
    return f"{name} on {', '.join(part.needs)}{on_at_most(part)}"


def describe_lacking(result: FolderFit) -> list[str]:
    """What each part that does not fit lacks, and the remedy."""
    return [_lacks(result, name, part) for name, part in result.parts.items() if not part.fits]


def _lacks(result: FolderFit, name: str, part: Fit) -> str:
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
