"""Reads the inputs that a user gives, as arrays or as files with arrays, images or texts.

A sample is the value of one input in one inference. Simple rules bring a sample to the shape and type of its input
(`_fit_to_input`); docs/guides/using.md states them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.own_sizes import fixed_by_weights
from ov_hsdag.model.shapes import bounded_dimension, counted_input_shapes, fitting_input_shapes, input_name
from ov_hsdag.model.steps import SyntheticInput, is_stateful
from ov_hsdag.utils import png
from ov_hsdag.utils.errors import UserError, one_line, quoted
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import SAMPLES, read_array, read_arrays, read_bytes, read_lines

KINDS = (".npy", ".npz", ".png", ".txt")
"""Endings of files with inputs."""

MOST_SAMPLES = 64
"""Largest number of inferences with given inputs. Each is compared, or timed in turn with the others."""

_KINDS_OF_VALUES = "biufU"
"""NumPy's kinds of types that inputs have: Boolean, integers, real numbers, texts."""

_COLORS = (1, 3)
"""Numbers of channels of inputs that take images: gray and RGB."""

GivenInputs = Mapping[str, object]
"""By input name ("" for the only input): an array, the path of a file, or a list of these with one sample each."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Inferences with inputs that a user gave; inputs that were not given are generated."""

    inferences: Sequence[list[NDArray[Any]]]  # arrays of each inference, in the order of the model's inputs
    shapes: Mapping[str, tuple[int, ...]]  # shapes of the dynamic inputs in the first inference, by input name


def parse_inputs(texts: Sequence[str]) -> dict[str, list[str]]:
    """Reads names and paths of inputs.

    Args:
        texts: "image=cat.png" or, for a model of one input, "cat.png"; an .npz without a name may have all inputs.
            Where a name is given several times, each file has one or more samples.

    Returns:
        Paths by input name.

    Raises:
        UserError: a file is of no known kind.
    """
    paths: dict[str, list[str]] = {}
    for text in texts:
        name, separator, path = text.rpartition("=") if not Path(text).exists() else ("", "", text)
        if not path.lower().endswith(KINDS) or (separator and not name):
            raise UserError(f"cannot read input {quoted(text)}: give it as NAME=FILE, a file of {', '.join(KINDS)}")
        paths.setdefault(name, []).append(path)
    return paths


def describe_files(given: GivenInputs | None) -> list[str]:
    """Formats given files as `parse_inputs` reads them, without their folders; arrays are left out."""
    files = [
        (name, file)
        for name, value in (given or {}).items()
        for file in (value if isinstance(value, list | tuple) else [value])
        if isinstance(file, str | os.PathLike)
    ]
    return [f"{name}={Path(file).name}" if name else Path(file).name for name, file in files]


def inputs_of_each(models: Sequence[ov.Model], given: GivenInputs) -> list[GivenInputs]:
    """Selects for each of several models the given inputs that it has.

    Args:
        models: the models.
        given: inputs by any name of an input; "" is for all models.

    Returns:
        The given inputs of each model, in the order of the models.

    Raises:
        UserError: no model has such an input.
    """
    input_names = [{name for port in model.inputs for name in _names(port)} for model in models]
    for name in given:
        if name and not any(name in names for names in input_names):
            there = ", ".join(sorted(input_name(port) for model in models for port in model.inputs)) or "none"
            raise UserError(f"inputs are given for unknown input {quoted(name)}; inputs: {there}")
    return [{name: one for name, one in given.items() if not name or name in names} for names in input_names]


def samples_of(
    model: ov.Model,
    given: GivenInputs | None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Samples | None:
    """Prepares inferences of a model with given inputs; None where there are none.

    Args:
        model: the model, which is not changed. Values of inputs that are not given are generated (`SyntheticInput`).
        given: see `GivenInputs`. Each input has the same number of samples, or one sample for all inferences.
        shapes: example shapes of dynamic inputs, by input name. Given arrays must have them; images are resized to
            them.
        images: example shapes to which images are resized where `shapes` has none.

    Returns:
        The inferences and the shapes of their dynamic inputs.

    Raises:
        UserError: a file cannot be read or is damaged; an input is unknown; an array does not fit its input; or the
            model has states, so that its inferences depend on each other.
    """
    if not given:
        return None
    if is_stateful(model):
        raise UserError("inputs cannot be given for a model with states: its inferences are made up to fit together")
    by_port: dict[int, list[NDArray[Any]]] = {}
    for name, value in _named_arrays(model, given):
        number = _input_number(model, name)
        port = model.inputs[number]
        required_shape, default_shape = _shape_of(port, shapes), _shape_of(port, images)
        by_port.setdefault(number, []).extend(
            _fit_to_input(array, port, required_shape, default_shape, source) for array, source in value
        )
    count = max(map(len, by_port.values()))
    for number, arrays in by_port.items():
        if len(arrays) not in (1, count):
            named = input_name(model.inputs[number])
            raise UserError(f"input '{named}' has {len(arrays)} samples, and another one {count}: give as many of each")
    if count > MOST_SAMPLES:
        raise UserError(f"there are {count} samples of an input, at most {MOST_SAMPLES} are taken")
    given_arrays = [{number: arrays[one % len(arrays)] for number, arrays in by_port.items()} for one in range(count)]
    inferences = [_complete_inputs(model, arrays, seed, shapes) for seed, arrays in enumerate(given_arrays)]
    return Samples(inferences, _dynamic_shapes(model, inferences[0]))


def _names(port: ov.Output) -> set[str]:
    """Returns all names of an input: its friendly name and its tensor names."""
    return {port.get_node().get_friendly_name(), *port.get_names()}


def _shape_of(port: ov.Output, shapes: Mapping[str, Sequence[int]] | None) -> tuple[int, ...] | None:
    """Returns the example shape of an input, from shapes by any name of an input; None if it has none."""
    return next((tuple(shape) for name, shape in (shapes or {}).items() if name in _names(port)), None)


def _input_number(model: ov.Model, name: str) -> int:
    """Returns the number of the input with this name.

    Raises:
        UserError: no input has the name, or the name is "" and there are several inputs.
    """
    if not name and len(model.inputs) == 1:
        return 0
    for number, port in enumerate(model.inputs):
        if name and name in _names(port):
            return number
    available_names = ", ".join(sorted(map(input_name, model.inputs))) or "none"
    if not name:
        raise UserError(f"an input needs its name, as in NAME=FILE; inputs of the model: {available_names}")
    raise UserError(f"inputs are given for unknown input {quoted(name)}; inputs of the model: {available_names}")


Sourced = tuple[NDArray[Any], str]
"""An array, and its origin for messages: the path of its file, or "the input 'NAME'"."""


def _named_arrays(model: ov.Model, given: GivenInputs) -> Iterable[tuple[str, list[Sourced]]]:
    """Yields the arrays of each given value, with the name of their input.

    In an .npz file that is given without a name, for a model of several inputs, each array has the name of its input.
    """
    for name, value in given.items():
        several = value if isinstance(value, list | tuple) else [value]
        for item in several:
            if not isinstance(item, str | os.PathLike):
                yield name, [(_as_array(item), f"the input {quoted(name)}")]
            elif not name and len(model.inputs) > 1 and os.fspath(item).lower().endswith(".npz"):
                yield from ((key, [(array, os.fspath(item))]) for key, array in _read(item, read_arrays).items())
            else:
                yield name, [(array, os.fspath(item)) for array in _arrays_of_file(os.fspath(item), name)]


def _as_array(value: Any) -> NDArray[Any]:
    """Converts a given value to an array.

    Raises:
        UserError: the value is no array of numbers or texts.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UserError(f"an input is given that is no array: {one_line(error)}") from error
    if array.dtype.kind not in _KINDS_OF_VALUES:
        raise UserError(f"an input is given as {type(value).__name__}: give an array of numbers or texts, or a file")
    return array


def _arrays_of_file(path: str, name: str) -> list[NDArray[Any]]:
    """Reads the samples of a file: one array, or for .npz and .txt one for each array or line.

    Args:
        path: the file.
        name: name of the input. If an .npz has an array of this name, that one alone is returned.

    Raises:
        UserError: the file cannot be read.
    """
    kind = Path(path).suffix.lower()
    if kind == ".npy":
        return [_read(path, read_array)]
    if kind == ".png":
        return [_read(path, lambda where, most: png.decode(read_bytes(where, most)))]
    if kind == ".txt":
        return [np.array([line]) for line in _read(path, read_lines)]
    if kind == ".npz":
        arrays = _read(path, read_arrays)
        return [arrays[name]] if name in arrays else list(arrays.values())
    raise UserError(f"cannot read input {quoted(path)}: it is none of {', '.join(KINDS)}")


def _read(path: str | os.PathLike[str], read: Any) -> Any:
    """Reads a file, and turns errors into messages for users.

    Args:
        path: the file.
        read: function of a path and a largest size in bytes that returns the content, such as `read_array`.

    Returns:
        The result of `read`, which is not empty.

    Raises:
        UserError: the file cannot be read, is damaged or is empty.
    """
    try:
        content = read(path, SAMPLES)
    except OSError as error:
        raise UserError(f"cannot read input '{path}': {error.strerror or error}") from error
    except (ValueError, MemoryError) as error:
        raise UserError(f"cannot read input '{path}': {one_line(error) or 'it takes too much memory'}") from error
    if (content.size if isinstance(content, np.ndarray) else len(content)) == 0:
        raise UserError(f"cannot read input '{path}': there is nothing in it")
    return content


def _fit_to_input(
    array: NDArray[Any],
    port: ov.Output,
    required_shape: tuple[int, ...] | None,
    default_shape: tuple[int, ...] | None,
    source: str,
) -> NDArray[Any]:
    """Brings an array to the shape and type of its input.

    A single text is repeated to fill the input, see `_texts`. An image (8-bit, [height, width, channels], of a .png) is
    resized and transposed, see `_image`. Any other array may lack the batch axis, which is added; its values stay the
    same.

    Args:
        array: numbers or texts.
        port: the input.
        required_shape: the example shape that the array must have; None if it may have any shape that the input takes.
        default_shape: the example shape to which an image is resized where `required_shape` is None.
        source: origin of the array, for messages; the path of a file.

    Raises:
        UserError: the array does not fit the input.
    """
    shape = port.get_partial_shape()
    dtype = SyntheticInput.of(port.get_node()).dtype
    if (dtype.kind == "U") != (array.dtype.kind == "U") or array.dtype.kind not in _KINDS_OF_VALUES:
        takes = "texts" if dtype.kind == "U" else str(dtype)
        raise UserError(f"{source} has values of type {array.dtype}, and input '{input_name(port)}' takes {takes}")
    if dtype.kind == "U":
        return _texts(array, port, required_shape)
    if source.lower().endswith(".png"):
        array = _image(array, port, required_shape or default_shape)
    elif shape.rank.is_static and array.ndim == len(shape) - 1:
        array = array[None]
    if not shape.compatible(ov.PartialShape(list(array.shape))) or (
        required_shape and array.shape != tuple(required_shape)
    ):
        takes = str(list(required_shape) if required_shape else shape)
        raise UserError(f"{source} is of shape {list(array.shape)}, and input '{input_name(port)}' takes {takes}")
    return _cast(array, dtype, f"{source}, for input '{input_name(port)}'")


def _texts(array: NDArray[Any], port: ov.Output, required_shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Brings texts to the shape of their input.

    A single text is repeated to fill `required_shape` or, where that is None, the input's own shape: dimensions without
    a bound become 1, bounded ones have their bound. Several texts are returned as they are.

    Args:
        array: one or several texts.
        port: the input.
        required_shape: the example shape that several texts must have; None if they may have any that the input takes.

    Raises:
        UserError: several texts have another shape than `required_shape`, or one that the input does not take.
    """
    shape = port.get_partial_shape()
    filled_shape = required_shape
    if filled_shape is None and shape.rank.is_static:
        filled_shape = tuple(bounded_dimension(dimension, 1) for dimension in shape)
    if array.size == 1 and filled_shape is not None:
        return np.full(filled_shape, array.reshape(-1)[0])
    fits = shape.compatible(ov.PartialShape(list(array.shape)))
    if not fits or (required_shape and array.shape != required_shape):
        takes = list(required_shape) if required_shape else shape
        raise UserError(f"texts of shape {list(array.shape)} are given for input '{input_name(port)}' of shape {takes}")
    return array


def _cast(array: NDArray[Any], dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """Converts values to another type.

    Args:
        array: the values.
        dtype: the type. Real numbers may be rounded to it; integers must stay the same.
        what: origin of the values and their input, for messages.

    Raises:
        UserError: the values would change by more than rounding.
    """
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    rounds = np.issubdtype(dtype, np.floating)
    if not rounds and not np.array_equal(cast, array):
        raise UserError(f"{what}: its values of type {array.dtype} are not all {dtype}")
    return np.ascontiguousarray(cast)


def _image(pixels: NDArray[np.uint8], port: ov.Output, target_shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Resizes an image to its input and gives it the input's layout and number of channels.

    The size is that of the input or, where that is open, of the example shape, else the image's own. Pixels are
    interpolated (bilinear). Channels are RGB: gray is repeated, alpha is left out, and an input of one channel gets the
    mean. Floating-point inputs get numbers from 0 to 1, others from 0 to 255.

    Args:
        pixels: the image, uint8 [height, width, channels].
        port: the input.
        target_shape: shape of the input to fill; None to use the sizes that the input fixes.

    Returns:
        The image in the input's layout, float32 or uint8. If the input has four axes, it is repeated for the batch.

    Raises:
        UserError: the input does not take images of one or three channels.
    """
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic or len(shape) not in (3, 4):
        raise UserError(
            f"an image is given for input '{input_name(port)}' of shape {shape}: it takes three or four axes"
        )
    sizes = list(target_shape) if target_shape else [int(one.get_length()) if one.is_static else None for one in shape]
    batch, sizes = (sizes[0] or 1, sizes[1:]) if len(sizes) == 4 else (None, sizes)
    channels_first = _channels_first(port, sizes)
    channels, height, width = sizes if channels_first else (sizes[2], sizes[0], sizes[1])
    channels = channels or 3
    if channels not in _COLORS:
        raise UserError(
            f"an image is given for input '{input_name(port)}' of shape {shape}, which has {channels} channels"
        )
    colors = pixels[:, :, : 3 if pixels.shape[2] > 2 else 1].astype(np.float32)
    colors = _resized(colors, height or len(colors), width or colors.shape[1])
    colors = colors.mean(axis=2, keepdims=True) if channels == 1 else np.broadcast_to(colors, (*colors.shape[:2], 3))
    is_real = port.get_element_type().is_real()
    colors = colors / np.float32(255) if is_real else np.rint(colors).astype(np.uint8)
    laid_out = colors.transpose(2, 0, 1) if channels_first else colors
    return laid_out if batch is None else np.repeat(laid_out[None], batch, axis=0)


def _channels_first(port: ov.Output, sizes: Sequence[int | None]) -> bool:
    """Whether an input of images has channels before height and width.

    The layout that the model declares decides, else the weights that read the input, else the sizes.

    Args:
        port: the input.
        sizes: sizes of its three last axes; None where open.
    """
    layout = str(port.get_node().get_layout()).strip("[]").replace(",", "")
    if "C" in layout:
        return layout.index("C") < layout.find("W") or "W" not in layout
    if 1 in fixed_by_weights(port):
        return True
    return sizes[0] in _COLORS or sizes[2] not in _COLORS


def _resized(pixels: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """Resizes an image with bilinear interpolation between the centres of pixels; [height, width, channels]."""
    for axis, size in ((0, height), (1, width)):
        have = pixels.shape[axis]
        if size == have:
            continue
        at = np.clip((np.arange(size) + 0.5) * have / size - 0.5, 0, have - 1)
        low = np.floor(at).astype(np.int64)
        share = (at - low).astype(np.float32).reshape([-1 if one == axis else 1 for one in range(3)])
        upper = np.minimum(low + 1, have - 1)
        pixels = pixels.take(low, axis) * (1 - share) + pixels.take(upper, axis) * share
    return pixels


def _complete_inputs(
    model: ov.Model, arrays: Mapping[int, NDArray[Any]], seed: int, shapes: Mapping[str, Sequence[int]] | None
) -> list[NDArray[Any]]:
    """Returns an array for each input: given ones, and generated ones with shapes that fit them.

    Args:
        model: the model.
        arrays: the given arrays by the number of their input.
        seed: seed of the generated ones.
        shapes: example shapes by input name.

    Returns:
        The arrays, in the order of the inputs.

    Raises:
        UserError: the shapes do not fit the model.
        RunError: an input has a type of which no values can be generated.
    """
    sizes = {input_name(model.inputs[number]): array.shape for number, array in arrays.items()}
    known = {name for number in arrays for name in _names(model.inputs[number])}
    sizes |= {name: tuple(shape) for name, shape in (shapes or {}).items() if name not in known}
    for number, port in enumerate(model.inputs):
        # Inputs with the same open dimensions get the same shape: a mask has the shape of the input that it masks.
        twin = next((arrays[one] for one in arrays if _have_same_open_shape(port, model.inputs[one])), None)
        if number not in arrays and twin is not None and not _names(port) & set(shapes or {}):
            sizes[input_name(port)] = twin.shape
    dynamic = {name: shape for name, shape in sizes.items() if _port(model, name).get_partial_shape().is_dynamic}
    if dynamic:
        fitting_input_shapes(model, dynamic)  # raises UserError with the reason where they do not fit
    random = np.random.default_rng(seed)
    counted = counted_input_shapes(model, dynamic)
    return [
        arrays[number] if number in arrays else SyntheticInput.of(parameter).values(random, counted[number])
        for number, parameter in enumerate(model.get_parameters())
    ]


def _have_same_open_shape(port: ov.Output, other: ov.Output) -> bool:
    """Whether two inputs declare the same dynamic shape of known rank."""
    shape, another = port.get_partial_shape(), other.get_partial_shape()
    return bool(shape.is_dynamic and shape.rank.is_static and shape == another)


def _port(model: ov.Model, name: str) -> ov.Output:
    """Returns the input with this name. Raises the UserError of `_input_number`."""
    return model.inputs[_input_number(model, name)]


def _dynamic_shapes(model: ov.Model, arrays: Sequence[NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the arrays for dynamic inputs, by input name; `arrays` has one for each input."""
    return {
        input_name(port): array.shape
        for port, array in zip(model.inputs, arrays, strict=True)
        if port.get_partial_shape().is_dynamic
    }
