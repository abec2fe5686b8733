"""Options that several commands share, those of placing among them, and the checks of files before any work."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ov_hsdag.cli import console
from ov_hsdag.devices import extensions, virtual
from ov_hsdag.devices.device_set import in_upper_case
from ov_hsdag.model.config_sizes import sizes_beside
from ov_hsdag.model.inputs import example_shapes
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import assumed_sizes, input_name, sized
from ov_hsdag.placing.options import default_of, flags
from ov_hsdag.storage.files import check_model_output, save_model_atomically
from ov_hsdag.storage.folder_writing import check_folder_output, write_folder
from ov_hsdag.storage.ir_text import file_carries
from ov_hsdag.storage.model_folder import is_model_folder, longest_context, model_files
from ov_hsdag.storage.scratch import require_temporary_folder
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov


def _option(name: str) -> Any:
    """The flag of an option, for an annotated parameter of a command."""
    flag = flags()[name]
    text = flag.word(name)
    if flag.kind is bool:
        text = f"{text}/{text.replace('--', '--no-')}"
    return typer.Option(text, metavar=flag.metavar or None, help=flag.help, min=flag.least)


def _type(name: str) -> Any:
    flag = flags()[name]
    plain: Any = Path if flag.kind == "file" else flag.kind
    if flag.several:
        return list[plain] | None
    return plain if default_of(name) is not None else plain | None


def options_of(*names: str) -> type[Any]:
    """A dataclass of options of placing as they are given, for `with_options_of`: texts, numbers and paths."""
    given = [(name, Annotated[_type(name), _option(name)], field(default=default_of(name))) for name in names]
    return make_dataclass("Given", given)


ProfileFile = Annotated[Path | None, _option("profile")]
AffinityFile = Annotated[Path | None, _option("affinity")]
Objective = Annotated[str, _option("objective")]
Memory = Annotated[str | None, _option("memory")]
Shapes = Annotated[list[str] | None, _option("shapes")]
GivenInputs = Annotated[list[str] | None, _option("inputs")]
WorkloadOption = Annotated[str | None, _option("workload")]
Context = Annotated[int | None, _option("context")]
Static = Annotated[bool | None, _option("static")]
KvPrecision = Annotated[str | None, _option("kv_precision")]
Model = Annotated[
    Path,
    typer.Argument(
        help="What OpenVINO reads: IR, ONNX, TensorFlow, TFLite, Paddle, or a folder that optimum-intel exported; also"
        " as -m MODEL."
    ),
]


def device_option(help: str, metavar: str = "HETERO:A,B") -> Any:
    """The flag of devices, for an annotated parameter of a command; what is typed in lower case is understood."""
    return typer.Option("--device", "-d", metavar=metavar, help=help, callback=lambda one: one and in_upper_case(one))


def output_option(metavar: str, help: str) -> Any:
    """The flag of what a command writes, for an annotated parameter of a command."""
    return typer.Option("--output", "-o", metavar=metavar, help=help)


Device = Annotated[str, device_option("Devices in the order of preference.")]
Output = Annotated[
    Path,
    output_option(
        "OUT.xml|DIR",
        "IR to write; its .bin stands beside it. A symbolic link is replaced, not followed. Of a folder, a folder.",
    ),
]
Part = Annotated[
    str | None, typer.Option("--part", metavar="NAME", help="Which model of a folder, where it has several.")
]
Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--part",
        metavar="NAME",
        help="A model of a folder, such as vision_embeddings_model; can be given several times. By default the language"
        " model, or encoder and decoder.",
    ),
]
HardLinks = Annotated[
    bool,
    typer.Option(
        "--hardlinks/--no-hardlinks",
        help="Share weights that stay the same with the input folder, or copy them; of a folder only.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in DIR with its own settings.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the run (default 0).")]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads of torch.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a text.")]


@dataclass
class _Shared:
    """Options of every command, `extension` of those that read models; they set variables of `console`."""

    extension: Annotated[
        list[str] | None,
        typer.Option(
            "--extension",
            metavar="LIB.so",
            help="Load a library of custom operations, as Core::add_extension does; can be given several times.",
        ),
    ] = None
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Results, warnings and errors alone: no progress, no legend, no hint at what is next."
        ),
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print a line for each step, with the seconds that it took.")
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, and all that OpenVINO prints.")] = False


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options that all commands have, which are not handed on to it."""

    @functools.wraps(command)
    def run(*arguments: Any, shared: _Shared, **options: Any) -> None:
        for name, value in vars(shared).items():
            setattr(console, name, value)
        if console.quiet and console.verbose:
            raise UserError("--quiet and --verbose ask for less and for more: give one of them")
        # openvino.convert_model takes the word in any program's arguments for its own, and prints on standard output.
        sys.argv[1:] = [word for word in sys.argv[1:] if word != "--verbose"]
        command(*arguments, **options)

    reads = not {"model", "models", "application"}.isdisjoint(inspect.signature(command).parameters)
    return with_options_of(_Shared, "shared", () if reads else ("extension",))(run)


def with_options_of(
    kind: type[Any], name: str, without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose options are the fields of the dataclass `kind`, some left out.

    Its parameter `name` gets one of that; of a command that declares none the options come last.
    """
    hints = get_type_hints(kind, include_extras=True)
    options = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for one in fields(kind)
        if one.name not in without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*arguments: Any, **given: Any) -> None:
            own = {one.name: given.pop(one.name, one.default) for one in options}
            command(*arguments, **given, **{name: kind(**own)})

        signature = inspect.signature(command, eval_str=True)
        parameters = []
        for one in signature.parameters.values():
            parameters += options if one.name == name else [one.replace(kind=one.KEYWORD_ONLY)]
        parameters += [] if name in signature.parameters else options
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def require_training(what: str) -> None:
    """Raise UserError, with how to install it, where a package of the extra `train` is missing. what: the command."""
    missing = [name for name in ("torch", "tensorboard", "safetensors") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{what} needs {', '.join(missing)}: install ov-hsdag with this extra, in its source folder with"
            " pip install '.[train]'"
        )


def one_file(model: Path, part: str | None, use: str) -> Path:
    """The file of a model, or of one of a folder's; `use` is for the UserError where there are several: "count"."""
    check_model(model)
    files = model_files(model, () if part is None else (part,))
    if len(files) > 1:
        names = ", ".join(file.stem for file in files)
        raise UserError(f"{model} has several models: name the one to {use} with --part ({names})")
    return files[0]


def check_model(path: Path) -> None:
    """Raise UserError where there is no such file (or folder: TensorFlow's SavedModel is one)."""
    if not os.path.exists(path):  # `Path.exists` raises where a name is too long
        raise UserError(f"no such model: {path}")
    if not (path.is_file() or path.is_dir()):  # reading a pipe or a device may never end
        raise UserError(f"cannot read {path}: it is neither a file nor a folder")


def check_output(path: Path, model: Path) -> None:
    """Raise UserError where a model's IR, or folder, cannot be written there without harm. Leaves nothing behind."""
    if is_model_folder(model):
        if path.suffix in (".xml", ".bin"):
            raise UserError(f"{model} is a folder, and so is its output; got '{path}'")
        check_folder_output(path, model)
        return
    if path.suffix != ".xml":
        raise UserError(f"the output is an OpenVINO IR: its name must end in .xml, got '{path}'")
    # A placed model is made from another one, so that placing it anew or stripping it in place loses nothing.
    check_model_output(path, model, replace_source=file_carries(model))


def assumed_shapes(
    model: ov.Model,
    given: Mapping[str, Sequence[int]] | None,
    used: Mapping[str, Sequence[int]] | None = None,
    beside: Collection[str] = (),
) -> str:
    """A line about dynamic inputs whose sizes nobody gave, else "".

    Args:
        model: that was placed.
        given: example shapes that the user gave, by input name.
        used: example shapes with which the model was placed; by default those given.
        beside: names of the inputs whose sizes the configuration beside the model told.
    """
    configured = {
        input_name(port)
        for port in model.inputs
        if not {port.get_node().get_friendly_name(), *port.get_names()}.isdisjoint(beside)
    }
    parts = [
        sized(name, size) + (" (from its configuration)" if name in configured else "")
        for name, size in assumed_sizes(model, given, used).items()
    ]
    return f"costs assume {', '.join(parts)}; --shape assumes other sizes" if parts else ""


def warn_of_long_context(model: Path, tokens: int) -> None:
    """Warn where a language model, by the configuration beside it, was made for fewer tokens."""
    longest = longest_context(model)
    if longest is not None and tokens > longest:
        warnings.warn(
            f"{model.parent / 'config.json'} says that the model was made for {longest:,} tokens", stacklevel=2
        )


def has_fp16_weights(model: ov.Model) -> bool:
    """Whether the model's weights are those of an IR that was compressed to FP16 (ovc's default).

    OpenVINO's own transformations, which placing begins with, widen them to f32; written as FP16 they are the same.
    """
    return any(op.get_type_name() == "Convert" and "decompression_0" in op.get_rt_info() for op in model.get_ops())


def new_core() -> ov.Core:
    """A Core with the declared virtual devices and the libraries of --extension. Raises UserError, RunError."""
    core = virtual.new_core()
    for path in console.extension or ():
        extensions.add(core, path)
    return core


def has_temporary_folder() -> bool:
    """Whether measuring has a folder for its files; a line says so where it has none."""
    try:
        require_temporary_folder()
    except RunError as error:
        console.message(f"warning: nothing is measured, the placement is chosen by prediction: {error}")
        return False
    return True


def write_models(
    output: Path, model: Path, models: Mapping[Path, tuple[ov.Model, bool]], hard_links: bool = True
) -> None:
    """Write what was made of a model or a folder, by its files, each with whether its weights become FP16."""
    with console.progress(f"writing {output}"):
        if is_model_folder(model):
            write_folder(output, model, {file.name: one for file, one in models.items()}, hard_links=hard_links)
        else:
            found, compress = models[model]
            save_model_atomically(found, output, compress_to_fp16=compress)


def read_with_shapes(
    core: ov.Core, path: Path, given: Mapping[str, Sequence[int]], *, fixes_sizes: bool = False
) -> tuple[ov.Model, Mapping[str, Sequence[int]] | None]:
    """Read a model, and example shapes: those given, and where it was not placed with others those beside it.

    Where example shapes are fixed, those given alone. Raises UserError.
    """
    loaded = read_model(core, path)
    (shapes,) = example_shapes([loaded], given)
    return loaded, shapes if fixes_sizes else with_known_shapes(loaded, path, shapes)


def with_known_shapes(
    model: ov.Model, path: Path, given: Mapping[str, Sequence[int]] | None
) -> dict[str, Sequence[int]] | None:
    """Example shapes of a model that was read from a file: those given, and of other inputs those beside the file.

    None for none, and where the model was placed with some and none are given.
    """
    placement = Placement.of(model)
    earlier = ((placement and placement.settings) or {}).get("shapes", {})
    if earlier and not given:  # they count as a whole
        return None
    return {**(given or {}), **sizes_beside(model, path, given)} or None


def read_model(core: ov.Core, path: Path) -> ov.Model:
    """Read any model that OpenVINO reads. Raises UserError in one line where it is missing, no model or damaged."""
    check_model(path)
    try:
        with console.progress(f"reading {path}"), console.quiet_native_errors():
            return core.read_model(path)
    except RuntimeError as error:
        if path.is_symlink():  # weights may be beside what it points to
            with contextlib.suppress(RuntimeError), console.quiet_native_errors():
                return core.read_model(path.resolve())
        reason = one_line(error)
        if reason.startswith("Unable to read the model"):
            # No frontend felt responsible; OpenVINO's text names all of them and gives no reason.
            reason = "it is no IR, ONNX, TensorFlow, TFLite or Paddle model"
        raise UserError(f"cannot read {path}: {reason}") from error
