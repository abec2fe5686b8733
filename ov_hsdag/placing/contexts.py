"""The placement problem of a decoder at any context length, and the longest context that fits into memory.

A context is the number of tokens that the states of a decoder hold. The sizes of tensors are read from the model at
three contexts and interpolated for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.costs.memory import memory_needs
from ov_hsdag.model.workload import PROMPT, Workload, decoder_shapes
from ov_hsdag.placers.filling import Filling
from ov_hsdag.placing.candidates import NamedPlacement, run
from ov_hsdag.placing.host_memory import HostMemory, feasible
from ov_hsdag.problem.pricing import ModelAnalysis, Session, WorkloadProblem
from ov_hsdag.problem.problem import PlacementProblem

_MOST_TOKENS = 1 << 24
"""Context, tokens, that no model reaches: where it does not exceed memory, the context counts as unlimited."""

_MOST_SAMPLED = 1 << 16
"""Longest context, tokens, whose tensor sizes are read from the model.

Sizes are read at up to three times as many tokens, where the bytes of an attention mask, the square of that, are still
below the limits of what a problem can hold."""

_STEPS_OF_CONTEXT = 1000
"""The longest context is determined to one part in this number; memory is an estimate anyway."""


@dataclass(frozen=True, eq=False)
class _Growth:
    """Sizes of all outputs as polynomials of the context.

    Sizes are constant, linear, or quadratic, as an attention mask of a whole prompt is.

    Attributes:
        tokens: the shortest of the three contexts at which sizes were read.
        at_multiples: bytes of each output at one, two and three times that context, float64 [3, outputs].
    """

    tokens: int
    at_multiples: NDArray[np.float64]

    def at(self, tokens: int) -> NDArray[np.float64]:
        """Interpolates the bytes of each output at a context by Newton's polynomial, float64 [outputs].

        Args:
            tokens: the context.
        """
        once, twice, thrice = self.at_multiples
        step = tokens / self.tokens - 1
        return once + step * (twice - once) + step * (step - 1) / 2 * (thrice - 2 * twice + once)


@dataclass(frozen=True, eq=False)
class ContextProblems:
    """The placement problems of a decoder at all context lengths, interpolated from tensor sizes at three of them.

    With a workload, the prompt that is read at once keeps its length at all contexts. Where only a context was given,
    the prompt is as long as the context.

    Attributes:
        problem: the problem at the context of the workload.
    """

    problem: PlacementProblem
    _session: Session
    _analysis: ModelAnalysis
    _tokens: int  # context of the workload
    # bytes of each output while a prompt of fixed length is read, int64 [outputs]; 0 where the prompt grows
    _prompt: NDArray[np.int64]
    # sizes while the last token is read; where the prompt is as long as the context, also while the prompt is read
    _growing: tuple[_Growth, ...]

    @classmethod
    def of(
        cls, session: Session, analysis: ModelAnalysis, workload: Workload, priced: WorkloadProblem | None = None
    ) -> ContextProblems:
        """Derives the problems of a model from a workload.

        Args:
            session: the devices and their costs.
            analysis: the analysed model.
            workload: the workload, whose context is the first of the three.
            priced: problem of the workload's phases, where the caller has it; computed by default.

        Returns:
            The problems.
        """
        model, batch = analysis.model, workload.batch
        decoding = decoder_shapes(model, batch, 1, workload.tokens)
        other_shapes = {name: shape for name, shape in (analysis.shapes or {}).items() if name not in decoding}
        if priced is None:
            priced = session.price(analysis, "latency", phases=workload.phases_with(model, other_shapes))
        first = min(workload.tokens, _MOST_SAMPLED)

        def growth(whole: bool) -> _Growth:
            """Reads the sizes of all outputs from the model, while a whole prompt or its last token is read."""
            contexts = [first, 2 * first, 3 * first]
            shapes = [decoder_shapes(model, batch, tokens if whole else 1, tokens) for tokens in contexts]
            sizes = [analysis.graph.resized(model, {**each, **other_shapes}).output_bytes for each in shapes]
            return _Growth(first, np.stack(sizes).astype(np.float64))

        growing, prompt = [growth(whole=False)], priced.output_bytes[PROMPT]
        if workload.by_context:
            growing.append(growth(whole=True))
            prompt = np.zeros_like(prompt)
        return cls(priced.problem, session, analysis, workload.tokens, prompt, tuple(growing))

    def output_bytes(self, tokens: int) -> NDArray[np.int64]:
        """Computes the largest size of each output over all inferences at a context, bytes, int64 [outputs]."""
        largest = np.max([self._prompt, *(growth.at(tokens) for growth in self._growing)], axis=0)
        return np.rint(largest).clip(0).astype(np.int64)

    def at(self, tokens: int) -> PlacementProblem:
        """Makes the problem whose memory is that of a context of `tokens`; its times remain those of the workload."""
        graph = replace(self.problem.graph, output_bytes=_representable(self.output_bytes(tokens)))
        names, session = self.problem.devices, self._session
        ratio = np.ones(len(names)) if self.problem.storage_ratio is None else self.problem.storage_ratio
        held, live = memory_needs(self._analysis.model, graph, session.core, session.profile, names, ratio)
        return replace(
            self.problem,
            held_bytes=None if held is None else _representable(held),
            live_bytes=None if live is None else _representable(live),
        )

    def describe(self, candidates: Sequence[NamedPlacement]) -> str:
        """Describes the largest context that fits, as the end of the message that a context is too long."""
        most = self.largest([one.placement for one in candidates], refill=True)
        return f"the largest context that fits is {most} tokens" if most else "no context is short enough"

    def largest(
        self, placements: Sequence[NDArray[np.uint8]], *, refill: bool = False, host: HostMemory | None = None
    ) -> int | None:
        """The longest context with which one of the placements fits, by bisection.

        Args:
            placements: the placements, uint8 [groups] each.
            refill: whether the placement that `Filling` finds at each context counts as well.
            host: memory of this machine that some of the devices share; None where it is not checked.

        Returns:
            Tokens; None where memory does not limit the context, and 0 where not even one token fits.
        """
        if host is None and np.isinf(self.problem.memory_limits).all():
            return None

        def fits(tokens: int) -> bool:
            """Whether one of the placements fits with a context."""
            problem = self.at(tokens)
            if feasible(problem, placements, host).any():
                return True
            return refill and bool(feasible(problem, [run(Filling(), problem).placement], host)[0])

        most = max(_MOST_TOKENS, self._tokens)
        if fits(most):
            return None
        low, high = 0, most  # fits, does not fit
        while high - low > max(1, low // _STEPS_OF_CONTEXT):
            middle = (low + high) // 2 if low else max(high // 16, 1)
            if fits(middle):
                low = middle
            else:
                high = middle
            if not low and high == 1:
                return 0
        return low


def _representable(sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Scales sizes down where their sum exceeds what a problem can hold.

    Such sizes exceed the memory of every device before and after scaling.

    Args:
        sizes: bytes, of any shape.

    Returns:
        Bytes, int64 of the same shape.
    """
    total = float(sizes.sum(dtype=np.float64))
    scale = min(1.0, _native.MOST_BYTES / 2 / max(total, 1.0))
    return sizes.astype(np.int64) if scale == 1 else np.floor(sizes * scale).astype(np.int64)
