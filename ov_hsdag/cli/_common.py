"""What several commands share: options, checks of files before any work, and reading and writing of models.

Aliases such as `Model` and `Device` annotate a command's parameter, of which typer then makes an argument or an option.
"Options of placing" are the fields of `ov_hsdag.placing.options.PlaceOptions` that `flags` describes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
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
    """Makes the typer option for an option of placing, to annotate a command's parameter with.

    name: the option's name in `flags`.
    """
    flag = flags()[name]
    text = flag.word(name)
    if flag.kind is bool:
        text = f"{text}/{text.replace('--', '--no-')}"
    return typer.Option(text, metavar=flag.metavar or None, help=flag.help, min=flag.least)


def _type(name: str) -> Any:
    """Returns the type to which typer parses the value of an option of placing.

    An option that can be given several times has a list; one without a default may be None. name: as in `flags`.
    """
    flag = flags()[name]
    plain: Any = Path if flag.kind == "file" else flag.kind
    if flag.several:
        return list[plain] | None
    return plain if default_of(name) is not None else plain | None


def options_of(*names: str) -> type[Any]:
    """Makes a dataclass whose fields are options of placing, for `with_options_of` to add to a command.

    An instance has the values of the command line: texts, numbers and paths. Texts such as "GPU=8GiB" are not parsed.

    Args:
        names: names of the options, as in `flags`. They become the names of the fields.

    Returns:
        The class.
    """
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
    """Makes the option --device, to annotate a command's parameter with; names in lower case become upper case."""
    return typer.Option("--device", "-d", metavar=metavar, help=help, callback=lambda one: one and in_upper_case(one))


def output_option(metavar: str, help: str) -> Any:
    """Makes the option --output, to annotate a command's parameter with."""
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
    """The options that all commands share. Each field sets the variable of `console` with the same name.

    Only commands that read models have `extension`.
    """

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
    """Adds the options that all commands share to a command; their values go to `console`, not to the command."""

    @functools.wraps(command)
    def run(*arguments: Any, shared: _Shared, **options: Any) -> None:
        """Sets the variables of `console`, and calls the command with its own options."""
        for name, value in vars(shared).items():
            setattr(console, name, value)
        if console.quiet and console.verbose:
            raise UserError("--quiet and --verbose ask for less and for more: give one of them")
        # openvino.convert_model looks for this word in sys.argv, and would then print on standard output.
        sys.argv[1:] = [word for word in sys.argv[1:] if word != "--verbose"]
        command(*arguments, **options)

    reads = not {"model", "models", "application"}.isdisjoint(inspect.signature(command).parameters)
    return with_options_of(_Shared, "shared", () if reads else ("extension",))(run)


def with_options_of(
    kind: type[Any], name: str, without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a decorator that gives a command one option for each field of a dataclass.

    Args:
        kind: the dataclass; its annotated fields become options, with the same names and defaults.
        name: the command's parameter that receives an instance of `kind`. The options take its place in the order of
            `--help`; they come last where the command declares no such parameter.
        without: fields that become no options and keep their defaults.

    Returns:
        The decorator.
    """
    hints = get_type_hints(kind, include_extras=True)
    options = [
        inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=hints[option.name]
        )
        for option in fields(kind)
        if option.name not in without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """Wraps a command; the wrapper's signature, which typer reads, has the options."""

        @functools.wraps(command)
        def run(*arguments: Any, **values: Any) -> None:
            """Makes an instance of `kind` from the options' values, and calls the command with it."""
            option_values = {option.name: values.pop(option.name, option.default) for option in options}
            command(*arguments, **values, **{name: kind(**option_values)})

        signature = inspect.signature(command, eval_str=True)
        parameters = []
        for parameter in signature.parameters.values():
            parameters += options if parameter.name == name else [parameter.replace(kind=parameter.KEYWORD_ONLY)]
        parameters += [] if name in signature.parameters else options
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def require_training(what: str) -> None:
    """Raises UserError, with the command that installs it, where a package of the extra `train` is missing.

    what: the work that needs it, as the message names it: "pretraining".
    """
    missing = [name for name in ("torch", "tensorboard", "safetensors") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{what} needs {', '.join(missing)}: install ov-hsdag with this extra, in its source folder with"
            " pip install '.[train]'"
        )


def refuse_options(given: Mapping[str, object], why: str) -> None:
    """Raises UserError where an option is given that has no use in this case.

    Args:
        given: values of the options without use, by name. A false value stands for an option that was not given.
        why: end of the message, after "--option is": "for one model, not for a plan".
    """
    for name in (name for name, value in given.items() if value):
        raise UserError(f"--{name.replace('_', '-')} is {why}: leave it out")


_UNITS = {"s": 1, "m": 60, "h": 3600}  # seconds of each unit of --budget


def parse_duration(text: str) -> float:
    """Parses "90s", "10m", "1h" or "600" into seconds. Raises UserError for anything else."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip())
    if not match or float(match[1]) <= 0:
        raise UserError(f"budget '{text}' is no duration: give one like 90s, 10m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]


def one_file(model: Path, part: str | None, use: str) -> Path:
    """Returns the file of the single model that a command works on: `model` itself, or one model of that folder.

    Args:
        model: a model's file or an exported folder.
        part: stem of the file of one model of the folder; None for the only one.
        use: verb for the message, saying what is done with the model: "count".

    Returns:
        The path of the file.

    Raises:
        UserError: the file does not exist, or the folder has several models and `part` names none of them.
    """
    check_model(model)
    files = model_files(model, () if part is None else (part,))
    if len(files) > 1:
        names = ", ".join(file.stem for file in files)
        raise UserError(f"{model} has several models: name the one to {use} with --part ({names})")
    return files[0]


def check_model(path: Path) -> None:
    """Raises UserError where a model's file does not exist; a folder will do, as TensorFlow's SavedModel is one."""
    if not os.path.exists(path):  # `Path.exists` raises where a name is too long
        raise UserError(f"no such model: {path}")
    if not (path.is_file() or path.is_dir()):  # reading a pipe or a device may never end
        raise UserError(f"cannot read {path}: it is neither a file nor a folder")


def check_output(path: Path, model: Path) -> None:
    """Raises UserError where a model's IR or folder cannot be written at `path`, or would overwrite its source.

    The check leaves no file behind. model: the source.
    """
    if is_model_folder(model):
        if path.suffix in (".xml", ".bin"):
            raise UserError(f"{model} is a folder, and so is its output; got '{path}'")
        check_folder_output(path, model)
        return
    if path.suffix != ".xml":
        raise UserError(f"the output is an OpenVINO IR: its name must end in .xml, got '{path}'")
    # A placed model was made from another file, so that overwriting it by placing or stripping loses nothing.
    check_model_output(path, model, replace_source=file_carries(model))


def assumed_shapes(
    model: ov.Model,
    given: Mapping[str, Sequence[int]] | None,
    used: Mapping[str, Sequence[int]] | None = None,
    beside: Collection[str] = (),
) -> str:
    """Describes, in one line, the sizes that costs assume for dynamic inputs whose sizes the user did not give.

    Args:
        model: the placed model.
        given: example shapes that the user gave, by input name.
        used: example shapes with which the model was placed; `given` by default.
        beside: names of inputs whose sizes came from the configuration file in the model's folder.

    Returns:
        The line; "" where all sizes were given.
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
    """Warns where a language model was trained for fewer than `tokens` tokens, by the config.json in its folder.

    Args:
        model: the model's file, not its folder.
        tokens: tokens in the context at the end of a request: those of the prompt and the generated ones.
    """
    longest = longest_context(model)
    if longest is not None and tokens > longest:
        # The command line shows no place of a warning, so that any level would do.
        warnings.warn(
            f"{model.parent / 'config.json'} says that the model was made for {longest:,} tokens", stacklevel=2
        )


def has_fp16_weights(model: ov.Model) -> bool:
    """Whether the model comes from an IR whose weights were compressed to FP16 (ovc's default).

    Placing begins with OpenVINO's own transformations, which widen such weights to f32; writing them as FP16 again
    loses nothing.
    """
    return any(op.get_type_name() == "Convert" and "decompression_0" in op.get_rt_info() for op in model.get_ops())


def new_core() -> ov.Core:
    """Makes a Core with the declared virtual devices and the libraries of --extension.

    Raises the errors of `virtual.register` and of `extensions.add`.
    """
    core = virtual.new_core()
    for path in console.extension or ():
        extensions.add(core, path)
    return core


def has_temporary_folder() -> bool:
    """Whether there is a folder for the temporary files of measuring; warns on standard error where there is none."""
    try:
        require_temporary_folder()
    except RunError as error:
        console.message(f"warning: nothing is measured, the placement is chosen by prediction: {error}")
        return False
    return True


def write_models(
    output: Path, model: Path, models: Mapping[Path, tuple[ov.Model, bool]], hard_links: bool = True
) -> None:
    """Writes a model, or a copy of a folder with some of its models replaced.

    Args:
        output: the IR, or the folder, to write.
        model: the source: a model's file or a folder.
        models: the models to write by their source files, each with whether its weights are compressed to FP16.
        hard_links: share unchanged weights with the source folder instead of copying them.
    """
    with console.progress(f"writing {output}"):
        if is_model_folder(model):
            write_folder(output, model, {file.name: one for file, one in models.items()}, hard_links=hard_links)
        else:
            found, compress = models[model]
            save_model_atomically(found, output, compress_to_fp16=compress)


def read_with_shapes(
    core: ov.Core, path: Path, given: Mapping[str, Sequence[int]], *, fixes_sizes: bool = False
) -> tuple[ov.Model, Mapping[str, Sequence[int]] | None]:
    """Reads a model and finds example shapes for its dynamic inputs.

    Args:
        core: reads the model.
        path: the model's file.
        given: example shapes of the user, by input name.
        fixes_sizes: whether the example shapes are going to be fixed in the model; only the user's may be.

    Returns:
        The model and its example shapes: the user's alone where sizes get fixed, else those of `with_known_shapes`.

    Raises:
        UserError: the model cannot be read, or a shape does not suit it.
    """
    loaded = read_model(core, path)
    (shapes,) = example_shapes([loaded], given)
    return loaded, shapes if fixes_sizes else with_known_shapes(loaded, path, shapes)


def with_known_shapes(
    model: ov.Model, path: Path, given: Mapping[str, Sequence[int]] | None
) -> dict[str, Sequence[int]] | None:
    """Completes the user's example shapes by those from the configuration files in the model's folder.

    Args:
        model: the model, read from a file.
        path: that file.
        given: example shapes of the user, by input name.

    Returns:
        Shapes by input name; None where there are none. It is also None where the user gave none and the model carries
        a placement that was made with example shapes, as those of the placement count then.
    """
    placement = Placement.of(model)
    earlier = ((placement and placement.settings) or {}).get("shapes", {})
    if earlier and not given:  # the shapes of the placement are used as a whole
        return None
    return {**(given or {}), **sizes_beside(model, path, given)} or None


def read_model(core: ov.Core, path: Path) -> ov.Model:
    """Reads a model of any format of OpenVINO, and shows progress.

    Raises:
        UserError: the model is missing or damaged. The message is one line.
    """
    check_model(path)
    try:
        with console.progress(f"reading {path}"), console.quiet_native_errors():
            return core.read_model(path)
    except RuntimeError as error:
        if path.is_symlink():  # the weights may be in the folder of the link's target
            with contextlib.suppress(RuntimeError), console.quiet_native_errors():
                return core.read_model(path.resolve())
        reason = one_line(error)
        if reason.startswith("Unable to read the model"):
            # No frontend recognised the file; OpenVINO's message lists all frontends and gives no reason.
            reason = "it is no IR, ONNX, TensorFlow, TFLite or Paddle model"
        raise UserError(f"cannot read {path}: {reason}") from error
