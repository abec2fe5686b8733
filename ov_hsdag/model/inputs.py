"""Reads example shapes of a model's inputs as users write them, and makes the inputs of inferences.

An example shape is a static shape for an input with dynamic dimensions. Inputs are generated, or come from files.
"""

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

# "name=[1,128]", "name[1,128]" or "[1,128]", with the comma or the end of the text behind it.
_SHAPE = re.compile(r"\s*(?P<name>[^\[\]]*?)\s*=?\s*\[(?P<sizes>[^\[\]]*)\]\s*(?:,|$)")


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Reads example shapes from "input_ids=[1,128],mask=[1,128]", or from "[1,3,224,224]" for the input "".

    Args:
        texts: texts with one or several shapes each; the "=" may be left out, as in ovc's --input.

    Returns:
        Sizes by input name.

    Raises:
        UserError: a text cannot be read, a size is not positive, or an input is given twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
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
            if name in shapes:
                twice = f"input '{name}'" if name else "the input without a name"
                raise UserError(f"shape '{text}': {twice} has a shape already")
            if not all(re.fullmatch(r"\s*0*[1-9][0-9]*\s*", size) for size in sizes):
                raise UserError(f"shape '{text}': an example shape has positive whole numbers, got [{match['sizes']}]")
            shapes[name] = tuple(map(int, sizes))
    return shapes


def example_shapes(
    models: Sequence[ov.Model], shapes: Mapping[str, Sequence[int]]
) -> list[dict[str, tuple[int, ...]] | None]:
    """Assigns the shapes of `parse_shapes` to models, in the form of `shapes` of `ov_hsdag.place`.

    Args:
        models: the models.
        shapes: sizes by any of an input's tensor names or its friendly name; "" is the only input of each model.

    Returns:
        The shapes for each model, None where it has none.

    Raises:
        UserError: no model has such an input, a model has several inputs and the shape has no name, or a shape does not
            fit.
    """
    result: list[dict[str, tuple[int, ...]] | None] = []
    unknown = set(shapes) - {""}
    for model in models:
        names = {name for port in model.inputs for name in (port.get_node().get_friendly_name(), *port.get_names())}
        model_shapes = {name: tuple(shape) for name, shape in shapes.items() if name in names}
        unknown -= set(model_shapes)
        if "" in shapes:
            if len(model.inputs) != 1:
                inputs = ", ".join(sorted(name for port in model.inputs for name in port.get_names())) or "none"
                raise UserError(f'a shape needs the name of its input, as in "name=[1,128]"; inputs: {inputs}')
            model_shapes[model.inputs[0].get_node().get_friendly_name()] = tuple(shapes[""])
        result.append(model_shapes or None)
    for name in unknown:
        input_shapes(models[0], {name: shapes[name]})  # raises an error that lists the model's inputs
    for model, own_shapes in zip(models, result, strict=True):
        input_shapes(model, own_shapes or {})
    return result


def with_earlier_shapes(
    model: ov.Model, shapes: Mapping[str, Sequence[int]], earlier: Mapping[str, Sequence[int]]
) -> dict[str, Sequence[int]]:
    """Returns the shapes of this call; if there are none, the shapes of an earlier call that still fit the model.

    Given shapes replace the earlier ones as a whole: the batch size of one request must not be mixed with that of
    another.

    Args:
        model: the model.
        shapes: example shapes of this call, by input name.
        earlier: example shapes of an earlier call.

    Returns:
        Example shapes by input name.
    """
    combined = dict(shapes)
    for name, shape in earlier.items() if not shapes else ():
        with contextlib.suppress(UserError):
            input_shapes(model, {name: shape})
            combined[name] = shape
    return combined


def random_inputs(
    model: ov.Model, seed: int = 0, shapes: Mapping[str, Sequence[int]] | None = None
) -> list[NDArray[Any]]:
    """Draws one array for each input of the model.

    Values are those of `SyntheticInput`. In a stateful model the inputs fit together (`ov_hsdag.model.steps`).

    Args:
        model: the model.
        seed: seed of the random numbers.
        shapes: example shapes by input name; other dynamic dimensions get the size that costs count with.

    Returns:
        The arrays, in the order of the inputs.

    Raises:
        RunError: an input has a type of which no values can be generated.
    """
    if is_stateful(model):
        return StatefulInputs(model, shapes).timed(seed)[1][0]
    random = np.random.default_rng(seed)
    inputs = zip(model.get_parameters(), counted_input_shapes(model, shapes), strict=True)
    return [SyntheticInput.of(parameter).values(random, shape) for parameter, shape in inputs]


@dataclass(frozen=True, eq=False)
class TimedInputs:
    """Inferences of one kind, whose time is measured."""

    # inputs of consecutive inferences; where there is only one step, each inference begins with the same states
    steps: Sequence[Inputs]
    before: Sequence[Inputs] = ()  # inputs of untimed inferences that fill the states, beginning with the first values
    # tokens that the states hold before the first step; the states that `before` leaves are repeated up to this length
    past: int = 0
    name: str = ""  # name of the phase, see `Phase`; "" where there is only one
    count: float = 1.0  # inferences of this kind in one run of the workload


def timed_inputs(
    model: ov.Model,
    shapes: Mapping[str, Sequence[int]] | None = None,
    phases: Sequence[Phase] = (),
    samples: Samples | None = None,
) -> list[TimedInputs]:
    """Makes the inputs of timed inferences: from a workload's phases, from samples, or from example shapes.

    Args:
        model: the model.
        shapes: example shapes by input name, used where there are neither samples nor phases.
        phases: phases of a workload; those that do not occur are left out.
        samples: inputs from files, which are used in turn and take precedence.

    Returns:
        Timed inputs, one for each kind of inference.

    Raises:
        RunError: an input has a type of which no values can be generated.
    """
    if samples is not None:
        return [TimedInputs(samples.inferences)]
    timed = []
    for phase in phases or (Phase("", shapes or {}, 1.0),):
        if not phase.count:
            continue
        if is_stateful(model):
            inputs = StatefulInputs(model, phase.shapes or None)
            before, steps = inputs.timed()
            timed.append(TimedInputs(steps, before, inputs.past, phase.name, phase.count))
        else:
            timed.append(TimedInputs([random_inputs(model, shapes=phase.shapes)], (), 0, phase.name, phase.count))
    return timed


def conversations(
    model: ov.Model,
    seeds: Sequence[int],
    shapes: Mapping[str, Sequence[int]] | None = None,
    samples: Samples | None = None,
) -> list[list[list[NDArray[Any]]]]:
    """Makes inputs for a test whether two ways to run a model compute the same outputs.

    A conversation is a sequence of inferences that begins with reset states. A stateful model gets a prompt and further
    tokens, with beams that change places (`ov_hsdag.model.steps`). Any other model gets one inference. Generated inputs
    fill up samples to the number of seeds: a single sample could not show whether the outputs depend on the inputs.

    Args:
        model: the model.
        seeds: one seed for each conversation.
        shapes: example shapes by input name.
        samples: inputs from files, which take the place of the first conversations.

    Returns:
        For each conversation its inferences, for each inference one array per input.
    """
    if samples is not None:
        made_up = [random_inputs(model, seed, samples.shapes) for seed in seeds[len(samples.inferences) :]]
        return [[arrays] for arrays in (*samples.inferences, *made_up)]
    if is_stateful(model):
        return [StatefulInputs(model, shapes, sequences=2).conversation(seed) for seed in seeds]
    return [[random_inputs(model, seed, shapes)] for seed in seeds]
