"""Example shapes of a model's inputs, as people write them, and inputs made up for a model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.samples import Samples
from ov_hsdag.model.shapes import counted_input_shapes, input_shapes
from ov_hsdag.model.steps import Inputs, StatefulInputs, SyntheticInput, is_stateful
from ov_hsdag.model.workload import Phase
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

# "name=[1,128]", "name[1,128]" or "[1,128]", and what parts it from the next.
_SHAPE = re.compile(r"\s*(?P<name>[^\[\]]*?)\s*=?\s*\[(?P<sizes>[^\[\]]*)\]\s*(?:,|$)")


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Sizes by inputs' names from "input_ids=[1,128],mask=[1,128]", or "[1,3,224,224]" for the input "".

    Each text has one shape or several; the "=" may be left out, as ovc's --input does. UserError: a text cannot be
    read, a size is not positive, or an input is given twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        end = 0
        while end < len(text) or not text:
            match = _SHAPE.match(text, end)
            if match is None:
                raise UserError(
                    f'cannot read shape \'{text}\': give it as "input_ids=[1,128]", or "[1,128]" of one input'
                )
            end = match.end()
            name, sizes = match["name"], match["sizes"].split(",") if match["sizes"].strip() else []
            if name in found:
                twice = f"input '{name}'" if name else "the input without a name"
                raise UserError(f"shape '{text}': {twice} has a shape already")
            if not all(re.fullmatch(r"\s*0*[1-9][0-9]*\s*", size) for size in sizes):
                raise UserError(f"shape '{text}': an example shape has positive whole numbers, got [{match['sizes']}]")
            found[name] = tuple(map(int, sizes))
    return found


def example_shapes(
    models: Sequence[ov.Model], shapes: Mapping[str, Sequence[int]]
) -> list[dict[str, tuple[int, ...]] | None]:
    """What `parse_shapes` read, for each of several models as `shapes` of `ov_hsdag.place`; None for nothing.

    shapes: by any of an input's tensor names or its friendly name; "" for the only input of each model. UserError: no
    model has such an input, one has several and the shape has no name, or a shape does not fit.
    """
    result: list[dict[str, tuple[int, ...]] | None] = []
    unknown = set(shapes) - {""}
    for model in models:
        names = {name for port in model.inputs for name in (port.get_node().get_friendly_name(), *port.get_names())}
        own = {name: tuple(shape) for name, shape in shapes.items() if name in names}
        unknown -= set(own)
        if "" in shapes:
            if len(model.inputs) != 1:
                inputs = ", ".join(sorted(name for port in model.inputs for name in port.get_names())) or "none"
                raise UserError(f'a shape needs the name of its input, as in "name=[1,128]"; inputs: {inputs}')
            own[model.inputs[0].get_node().get_friendly_name()] = tuple(shapes[""])
        result.append(own or None)
    for name in unknown:
        input_shapes(models[0], {name: shapes[name]})  # says which inputs there are
    for model, own_shapes in zip(models, result, strict=True):
        input_shapes(model, own_shapes or {})
    return result


def with_earlier_shapes(
    model: ov.Model, shapes: Mapping[str, Sequence[int]], earlier: Mapping[str, Sequence[int]]
) -> dict[str, Sequence[int]]:
    """The shapes, or where there are none, those that were given earlier, as far as they still fit.

    Given shapes replace earlier ones as a whole: a batch of one input with the batch of another is no request.
    """
    found = dict(shapes)
    for name, shape in earlier.items() if not shapes else ():
        with contextlib.suppress(UserError):
            input_shapes(model, {name: shape})
            found[name] = shape
    return found


def random_inputs(
    model: ov.Model, seed: int = 0, shapes: Mapping[str, Sequence[int]] | None = None
) -> list[NDArray[Any]]:
    """One array for each input of the model, drawn from the seed.

    Values are those of `SyntheticInput`, and in a stateful model the inputs fit together (`ov_hsdag.model.steps`).
    Dynamic dimensions get the size that costs count with, or that of `shapes`. RunError: inputs of other types.
    """
    if is_stateful(model):
        return StatefulInputs(model, shapes).timed(seed)[1][0]
    random = np.random.default_rng(seed)
    inputs = zip(model.get_parameters(), counted_input_shapes(model, shapes), strict=True)
    return [SyntheticInput.of(parameter).values(random, shape) for parameter, shape in inputs]


@dataclass(frozen=True, eq=False)
class TimedInputs:
    """Inferences of one kind, whose time is measured."""

    # inputs of inferences one after the other; each inference of a single step begins with the same states
    steps: Sequence[Inputs]
    before: Sequence[Inputs] = ()  # inputs of inferences, from the states' first values, that fill the states
    # tokens that the states hold before the first step. What `before` leaves there is repeated up to that
    past: int = 0
    name: str = ""  # of the phase, see `Phase`; "" where there is only one
    count: float = 1.0  # how many of them belong to one run of the workload


def timed_inputs(
    model: ov.Model,
    shapes: Mapping[str, Sequence[int]] | None = None,
    phases: Sequence[Phase] = (),
    samples: Samples | None = None,
) -> list[TimedInputs]:
    """Inputs of what is timed: phases of a workload that occur, or samples in turns, or what example shapes describe.

    Raises RunError.
    """
    if samples is not None:
        return [TimedInputs(samples.inferences)]
    found = []
    for phase in phases or (Phase("", shapes or {}, 1.0),):
        if not phase.count:
            continue
        if is_stateful(model):
            inputs = StatefulInputs(model, phase.shapes or None)
            before, steps = inputs.timed()
            found.append(TimedInputs(steps, before, inputs.past, phase.name, phase.count))
        else:
            found.append(TimedInputs([random_inputs(model, shapes=phase.shapes)], (), 0, phase.name, phase.count))
    return found


def conversations(
    model: ov.Model,
    seeds: Sequence[int],
    shapes: Mapping[str, Sequence[int]] | None = None,
    samples: Samples | None = None,
) -> list[list[list[NDArray[Any]]]]:
    """What shows whether two ways to run a model compute the same: for each seed the inputs that belong together.

    Of a stateful model a prompt and further tokens, with beams that change places (`ov_hsdag.model.steps`), after which
    its states are reset; of any other model one. Samples take the place of the first of them: of a single one nobody
    could tell whether outputs depend on inputs.
    """
    if samples is not None:
        made_up = [random_inputs(model, seed, samples.shapes) for seed in seeds[len(samples.inferences) :]]
        return [[arrays] for arrays in (*samples.inferences, *made_up)]
    if is_stateful(model):
        return [StatefulInputs(model, shapes, sequences=2).conversation(seed) for seed in seeds]
    return [[random_inputs(model, seed, shapes)] for seed in seeds]
