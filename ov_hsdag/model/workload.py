"""Describes the workload of a decoder, and finds the shapes of its inputs for each phase.

A workload is a prompt followed by generated tokens. A phase is the inferences of one size in it, with the number of
times that they occur. The context is the number of tokens whose states must fit into memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

# Names of decoders' inputs in models of optimum-intel and openvino.genai.
TOKENS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds")
"""Names of inputs with the new tokens: numbers [batch, tokens], or embeddings [batch, tokens, size]."""

MASKS = ("attention_mask", "decoder_attention_mask")
"""Names of attention masks: int64 [batch, past + tokens], in models without attention [batch, tokens]."""

_LIKE_TOKENS = ("token_type_ids",)  # inputs with the shape of tokens
POSITIONS, BEAMS = "position_ids", "beam_idx"
"""Names of positions, int64 [batch, tokens] or [planes, batch, tokens]; and of sequences' numbers, int32 [batch]."""

CACHE_POSITIONS = "cache_position"
"""Name of an input of one dimension: the places of the new tokens in the states."""

_TIMED_PROMPT = 256
"""Tokens of the longest timed prompt where only a context is known; longer prompts would take too long to time."""

_KEYS = ("prompt", "generate", "batch")  # of a workload's text, and attributes of `Workload`

PROMPT = "prompt"
"""Name of the phase that reads a prompt."""

LONGEST_PROMPT, LAST_TOKEN = "longest prompt", "last token"
"""Names of the phases that count for memory only."""


@dataclass(frozen=True)
class Phase:
    """Inferences of one size."""

    name: str  # "prompt" or "token", for reports
    shapes: Mapping[str, Sequence[int]]  # shapes of dynamic inputs, by input name
    count: float  # inferences of this size in one run of the workload; 0 if the phase only has to fit into memory


@dataclass(frozen=True)
class Workload:
    """The workload of a decoder: a prompt, then tokens one after the other."""

    prompt: int  # tokens of the prompt, which are read at once
    generate: int  # tokens that are generated after it
    batch: int = 1  # sequences at a time, beams included
    context: int = 0  # tokens whose states must fit into memory; smaller numbers count as `prompt + generate`
    longest_prompt: int = 0  # tokens of the longest prompt that memory must allow; smaller ones count as `prompt`

    def __post_init__(self) -> None:
        """Checks the numbers. Raises UserError where one is not positive."""
        for name in _KEYS:
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise UserError(f"a workload has a positive number for '{name}', got {number!r}")
        if self.context < 0:
            raise UserError(f"a context has a positive number of tokens, got {self.context}")

    @classmethod
    def parse(cls, text: str, context: int = 0) -> Workload:
        """Reads "prompt=1024,generate=256", with "batch=4" where that is not 1.

        Args:
            text: the workload.
            context: tokens whose states must fit into memory; 0 for those of the workload.

        Raises:
            UserError: the text cannot be read, or a number is not positive.
        """
        numbers: dict[str, int] = {}
        for part in text.split(","):
            match = re.fullmatch(r"\s*([a-z]+)\s*=\s*(\d{1,9})\s*", part)
            if match is None or match[1] not in _KEYS or match[1] in numbers:
                raise UserError(f"cannot read workload '{text}': give it as \"prompt=1024,generate=256\"")
            numbers[match[1]] = int(match[2])
        if not {"prompt", "generate"} <= numbers.keys():
            raise UserError(f"workload '{text}' needs both, as in \"prompt=1024,generate=256\"")
        return cls(**numbers, context=context)

    @classmethod
    def of_context(cls, context: int, batch: int = 1) -> Workload:
        """Makes a workload where only the context is known.

        The prompt is half of the context, at most 256 tokens, and the rest is generated. Memory counts a prompt as long
        as the context, because optimum-intel and openvino.genai (its backend SDPA, which several devices need) read a
        prompt at once, however long it is.

        Args:
            context: tokens whose states must fit into memory.
            batch: sequences at a time.

        Raises:
            UserError: the context has less than two tokens.
        """
        if context < 2:
            raise UserError(f"a context has at least two tokens, got {context}")
        prompt = min(context // 2, _TIMED_PROMPT)
        return cls(prompt, context - prompt, batch, context, longest_prompt=context)

    @classmethod
    def asked(cls, workload: Workload | str | None, context: int | None) -> Workload | None:
        """Makes the workload that the options `workload` and `context` of `ov_hsdag.place` ask for.

        Args:
            workload: a workload or its text, see `parse`; None if not given.
            context: tokens whose states must fit into memory; None if not given.

        Returns:
            The workload; None if neither option is given.

        Raises:
            UserError: as `parse` and `of_context`.
        """
        if workload is None:
            return None if context is None else cls.of_context(context)
        if isinstance(workload, str):
            return cls.parse(workload, context or 0)
        return workload if context is None else replace(workload, context=context)

    @property
    def by_context(self) -> bool:
        """Whether only a context was given, see `of_context`."""
        return self.longest_prompt > 0

    def describe(self) -> str:
        """Formats the workload as `parse` reads it."""
        return f"prompt={self.prompt},generate={self.generate},batch={self.batch}"

    @property
    def tokens(self) -> int:
        """Number of tokens whose states must fit into memory."""
        return max(self.context, self.prompt + self.generate)

    def phases(self, model: ov.Model) -> tuple[Phase, ...]:
        """Returns the phases of the workload for a model.

        They are the prompt; a token halfway through the generated ones, which stands for all of them; and, for memory
        only (their count is 0), the longest prompt if it is longer than the first, and the last token.

        Raises:
            UserError: as `decoder_shapes`.
        """
        halfway = self.prompt + (self.generate + 1) // 2
        longest = self.longest_prompt
        phases = [
            Phase(PROMPT, decoder_shapes(model, self.batch, self.prompt, self.prompt), 1.0),
            Phase("token", decoder_shapes(model, self.batch, 1, halfway), float(self.generate)),
        ]
        if longest > self.prompt:
            phases.append(Phase(LONGEST_PROMPT, decoder_shapes(model, self.batch, longest, longest), 0.0))
        return (*phases, Phase(LAST_TOKEN, decoder_shapes(model, self.batch, 1, self.tokens), 0.0))

    def phases_with(self, model: ov.Model, shapes: Mapping[str, Sequence[int]] | None) -> tuple[Phase, ...]:
        """Returns `phases` with the example shapes of further inputs added to each.

        Args:
            model: the decoder.
            shapes: example shapes of inputs that the workload does not size, by input name.

        Raises:
            UserError: as `decoder_shapes`, or an input's shape is given by both.
        """
        phases = self.phases(model)
        twice = sorted(set(shapes or {}) & set(phases[0].shapes))
        if twice:
            raise UserError(f"the workload gives the shape of '{twice[0]}' already: give either a shape or a workload")
        return tuple(replace(phase, shapes={**phase.shapes, **(shapes or {})}) for phase in phases)


def decoder_shapes(model: ov.Model, batch: int, new: int, total: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a decoder's inputs for one inference.

    Args:
        model: the decoder.
        batch: number of sequences.
        new: number of tokens that the inference reads, per sequence.
        total: number of tokens that the states hold afterwards, per sequence.

    Returns:
        Shapes by input name, for inputs that belong to decoders.

    Raises:
        UserError: the model has no states, or lacks the inputs of a decoder.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    tokens = False
    for port in model.inputs:
        shape = port.get_partial_shape()
        for name in port.get_names():
            if name in TOKENS or name in _LIKE_TOKENS:
                rest = tuple(int(size.get_length()) for size in list(shape)[2:] if size.is_static)
                shapes[name] = (batch, new, *rest)
                tokens |= name in TOKENS
            elif name in MASKS:
                shapes[name] = (batch, total if mask_covers_past(model) else new)
            elif name == POSITIONS:
                first = shape[0] if shape.rank.is_static and len(shape) == 3 else None
                # Positions may have several planes: Qwen2-VL's rotary embedding has time, height and width.
                planes = () if first is None else (int(first.get_length()) if first.is_static else 3,)
                shapes[name] = (*planes, batch, new)
            elif name == BEAMS:
                shapes[name] = (batch,)
            elif name == CACHE_POSITIONS:
                shapes[name] = (cache_positions(model, new) if new == total else new,)
            else:
                continue
            break
    if not tokens or not model.get_sinks():
        names = ", ".join(sorted(name for port in model.inputs for name in port.get_names())) or "none"
        lacks = "has no states" if tokens else f"has no input such as {TOKENS[0]} (its inputs: {names})"
        raise UserError(f"a context, or a workload of prompt and tokens, is one of decoders, and this model {lacks}")
    return shapes


def cache_positions(model: ov.Model, prompt: int) -> int:
    """Returns the length of the input `cache_position` when a prompt is read; `prompt` is its number of tokens."""
    return convolution_window(model) or prompt


def past_length(model: ov.Model) -> int | None:
    """Finds the number of tokens that the states of a model with static inputs hold before an inference.

    Returns:
        The length of the mask minus the number of new tokens; None if the inputs do not show both.
    """
    sizes: dict[str, int] = {}
    for port in model.inputs:
        shape = port.get_partial_shape()
        for kind, names in (("new", TOKENS), ("total", MASKS)):
            if port.get_names() & set(names) and shape.rank.is_static and len(shape) >= 2 and shape[1].is_static:
                sizes[kind] = int(shape[1].get_length())
    return None if len(sizes) < 2 or sizes["total"] < sizes["new"] else sizes["total"] - sizes["new"]


def mask_covers_past(model: ov.Model) -> bool:
    """Whether the attention mask covers all tokens so far, rather than only the new ones.

    It does if some state grows with the tokens (keys and values), if the rank of some state is unknown, or if the model
    has no states. Models whose states all keep their size (Mamba) have a mask of the new tokens under the same name.
    The first dimension of a state, the batch, does not count.
    """
    shapes = [variable.info.data_shape for variable in model.get_variables()]
    known_sizes = [list(shape)[1:] for shape in shapes if shape.rank.is_static]
    return (
        len(known_sizes) < len(shapes)
        or not known_sizes
        or any(size.is_dynamic for sizes in known_sizes for size in sizes)
    )


def convolution_window(model: ov.Model) -> int | None:
    """Returns the number of positions that the states of short convolutions hold; None if there are no such states.

    A Mamba takes that many positions in its cache with a prompt of any length, and one with each further token. With
    another number it writes outside of its state, which the CPU plugin does not check (docs/reference/facts.md).
    """
    for variable in model.get_variables():
        shape = variable.info.data_shape
        if ".conv." in variable.info.variable_id and shape.rank == 3 and shape[2].is_static:
            return int(shape[2].get_length())
    return None
