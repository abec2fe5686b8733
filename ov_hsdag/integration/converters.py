"""``ovc MODEL --placement HETERO:…``, and the same for ``mo`` (openvino-dev 2024.6): converters with a placement step.

The converters have no plug-in point, but both use argparse. Their parsers get our options, which are checked and
removed from the namespace right after parsing, and their convert functions get a further step. Without ``--placement``
nothing changes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ov_hsdag._env import disabled
from ov_hsdag.integration.requests import advice
from ov_hsdag.placing.options import PlaceOptions, flags
from ov_hsdag.storage import files
from ov_hsdag.utils.errors import INTERRUPTED, RunError, UserError, interrupted, one_line
from ov_hsdag.utils.lazy import ov

if TYPE_CHECKING:
    from ov_hsdag.model.placement import Placement

_REQUEST = "__ov_hsdag_request__"
"""Attribute of a parser: the `_Request` of the command line that it parsed; None without ``--placement``."""


@dataclass(frozen=True)
class _Request:
    """The placement options of a command line, checked."""

    device: str  # value of --placement
    options: PlaceOptions  # of the other options
    report: str | None  # file of the report; None for no report


Output = Callable[[argparse.Namespace], str]
"""Returns the path of the .xml file that a converter will write with these options."""


def wrap_parser(
    original: Callable[..., argparse.ArgumentParser], output: Output
) -> Callable[..., argparse.ArgumentParser]:
    """Wraps the function that makes a converter's parser; the parser then has our options and checks them.

    Args:
        original: the function.
        output: returns the file that the converter will write.
    """

    @functools.wraps(original)
    def get_all_cli_parser(*args: Any, **kwargs: Any) -> argparse.ArgumentParser:
        parser = original(*args, **kwargs)
        if not disabled():
            _add_options(parser)
            _check_when_parsed(parser, output)
        return parser

    return get_all_cli_parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``--placement``, ``--placement_report`` and an option for each flag that converters have (`Flag`)."""
    group = parser.add_argument_group("placement (ov-hsdag)")
    group.add_argument(
        "--placement",
        metavar="HETERO:A,B",
        help="Decide for every operation on which of these devices it runs, and write that into the model: "
        "compile_model on these devices follows it. The devices need not be present.",
    )
    for name, flag in flags().items():
        if flag.converters and flag.kind is bool:
            group.add_argument(f"--placement_{name}", action="store_true", default=None, help=flag.help)
        elif flag.converters:
            group.add_argument(f"--placement_{name}", metavar=flag.metavar, help=flag.help)
    group.add_argument(
        "--placement_report",
        metavar="FILE.html|svg|png",
        help="Also write what runs where, and why, as one page (or the picture of the split).",
    )


def _check_when_parsed(parser: argparse.ArgumentParser, output: Output) -> None:
    """Makes a parser check our options right after parsing, as the conversion can take minutes.

    The parser keeps the request that they make in its attribute `_REQUEST`. The options are removed from the namespace:
    converters print and store in the IR all options that they find there.
    """
    parse_args = parser.parse_args

    @functools.wraps(parse_args)
    def parse_and_check(*args: Any, **kwargs: Any) -> argparse.Namespace:
        namespace: argparse.Namespace = parse_args(*args, **kwargs)
        options = {name: vars(namespace).pop(name) for name in list(vars(namespace)) if name.startswith("placement")}
        with _errors_end_the_command():
            setattr(parser, _REQUEST, _checked(functools.partial(output, namespace), _source(namespace), options))
        return namespace

    parser.parse_args = parse_and_check  # type: ignore[method-assign,assignment]


def _source(namespace: argparse.Namespace) -> str | None:
    """Finds the file that a converter reads; None where it reads a folder, or another option names it."""
    given = getattr(namespace, "input_model", None)
    names = given if isinstance(given, list | tuple) else [given]
    return next((os.fspath(one) for one in names if isinstance(one, str | os.PathLike) and os.path.isfile(one)), None)


def _checked(output: Callable[[], str], source: str | None, values: dict[str, Any]) -> _Request | None:
    """Checks our options and makes a request of them.

    Args:
        output: returns the .xml that the converter will write.
        source: the file that it reads, if that is known.
        values: values of our options by their names in the namespace.

    Returns:
        The request; None without ``--placement``.

    Raises:
        UserError: an option is wrong, or another one is given without ``--placement``.
    """
    device, report = values.pop("placement"), values.pop("placement_report")
    if device is None:
        for name, value in {**values, "placement_report": report}.items():
            if value is not None:
                raise UserError(f"--{name} needs --placement HETERO:…, the devices to place on")
        return None
    from ov_hsdag.costs.builtin import builtin_profile
    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.devices.device_set import DeviceSet
    from ov_hsdag.placing.candidates import policy_placers
    from ov_hsdag.problem.problem import check_objective
    from ov_hsdag.report.write import check_report

    names = DeviceSet.parse(device).names
    options = PlaceOptions.of(None, {name.removeprefix("placement_"): value for name, value in values.items()})
    check_objective(options.objective)
    profile = Profile.load(values["placement_profile"]) if values["placement_profile"] is not None else None
    for name in names:
        (profile or builtin_profile([name])).device(name)  # raises UserError where the profile lacks that device
    policy_placers(options.policy)  # raises UserError where the policy cannot be used
    files.check_model_output(output(), source)
    if report is not None:
        check_report(report)
        if source is not None:
            files.check_not_input(report, source)
    if options.measure:
        from ov_hsdag.devices.virtual import new_core
        from ov_hsdag.placing.selection import check_possible

        check_possible(new_core(), DeviceSet(names))
    return _Request(device, options, report)


def wrap_convert(original: Callable[..., Any], placed: list[ov.Model]) -> Callable[..., Any]:
    """Wraps a converter's ``_convert(parser, …) → (model, …)``: the model is placed in place afterwards.

    Args:
        original: the function.
        placed: the list to which placed models are appended, see `wrap_save`.
    """

    @functools.wraps(original)
    def _convert(cli_parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        result = original(cli_parser, *args, **kwargs)
        request: _Request | None = getattr(cli_parser, _REQUEST, None)
        model = result[0]
        if request is not None and model is not None:
            with _errors_end_the_command():
                from ov_hsdag.costs.builtin import costs_line
                from ov_hsdag.devices import extensions
                from ov_hsdag.devices.virtual import new_core

                core = new_core()
                for one in getattr(result[1], "extension", None) or ():
                    if isinstance(one, str | os.PathLike) and os.path.isfile(one):
                        extensions.add(core, os.fspath(one))
                placement = _place(model, request, core)
                if request.report is not None:
                    command = shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
                    placement.report(request.report, title=model.get_friendly_name(), done={"command": command})
            placed.append(model)
            print(f"[ INFO ] placement {placement.summary()}")
            used = (placement.predicted or {}).get("measured_costs", [])
            unmeasured = "" if request.options.measure else "not measured: --placement_measure measures"
            costs = costs_line(used, None, request.options.profile, placement.devices, core, "--placement_profile")
            for line in filter(None, (costs, unmeasured, advice(placement))):
                print(f"[ INFO ] {line}")
        return result

    _convert.__ov_hsdag__ = True  # type: ignore[attr-defined]
    return _convert


def _place(model: ov.Model, request: _Request, core: ov.Core) -> Placement:
    """Places a model in place, and prints lines of progress."""
    from ov_hsdag.placing.place import place
    from ov_hsdag.utils.progress import lines

    with lines(f"placing on {request.device}", lambda line: print(f"[ INFO ] {line}", flush=True)) as tell:
        return place(model, request.device, options=request.options, core=core, report=tell)


def wrap_save(
    original: Callable[..., None], placed: list[ov.Model], compress: Callable[..., bool]
) -> Callable[..., None]:
    """Wraps a converter's function that saves a model: a model that we placed is written whole or not at all.

    Args:
        original: called with (model, path, …).
        placed: the models that `wrap_convert` has placed; all others are saved by `original`.
        compress: gets the arguments after the path; returns whether weights are compressed to FP16.

    Returns:
        The wrapped function.
    """

    @functools.wraps(original)
    def save(model: ov.Model, path: Any, *args: Any, **kwargs: Any) -> None:
        if not any(model is one for one in placed):
            original(model, path, *args, **kwargs)
            return
        with _errors_end_the_command():
            files.save_model_atomically(model, os.fsdecode(path), compress(*args, **kwargs))

    return save


@contextlib.contextmanager
def _errors_end_the_command() -> Iterator[None]:
    """Ends the process with one line and an exit status where placing fails inside the block.

    Converters catch Exception and report unknown ones as internal errors of their own, so SystemExit is raised: with
    status 2 for bad input, 1 for other errors, 130 for an interrupt.
    """
    try:
        yield
    except BaseException as error:
        if interrupted(error):
            raise SystemExit(INTERRUPTED) from error
        if not isinstance(error, Exception):
            raise
        reason = one_line(error)
        if not isinstance(error, UserError | RunError):
            if "--verbose" in sys.argv:
                traceback.print_exception(error)
            reason = f"placing the model failed: {reason} (--verbose shows more)"
        print(f"error: {reason}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, UserError) else 1) from error


def patch(module: Any) -> None:
    """Replaces the functions that a converter calls; a second call does nothing.

    Args:
        module: openvino.tools.ovc.main or openvino.tools.mo.convert_impl. The latter is the first import of mo's
            main.py, which runs as a script in a second process; the functions that this script imports are replaced
            where they are defined.
    """
    if getattr(module._convert, "__ov_hsdag__", False):
        return
    placed: list[ov.Model] = []
    if module.__name__ == "openvino.tools.mo.convert_impl":
        from openvino import runtime
        from openvino.tools.mo.utils import cli_parser

        compressed: list[bool] = []  # whether mo was asked for f16 weights
        cli_parser.get_all_cli_parser = wrap_parser(cli_parser.get_all_cli_parser, _output_of_mo)
        module._convert = wrap_convert(_noting(module._convert, compressed), placed)
        # mo compresses before it serializes, but placing may fold the conversions away again.
        runtime.serialize = wrap_save(runtime.serialize, placed, lambda *_, **__: compressed == [True])
    else:
        from openvino.tools.ovc import cli_parser

        cli_parser.get_all_cli_parser = wrap_parser(cli_parser.get_all_cli_parser, _output_of_ovc)
        module._convert = wrap_convert(module._convert, placed)
        module.save_model = wrap_save(module.save_model, placed, lambda compress_to_fp16=True: compress_to_fp16)


def _output_of_ovc(namespace: argparse.Namespace) -> str:
    """Returns the .xml that ovc will write with these options. Raises UserError where they name none."""
    from openvino.tools.ovc.cli_parser import get_model_name_from_args
    from openvino.tools.ovc.error import Error

    try:
        return os.fsdecode(get_model_name_from_args(namespace))
    except Error as error:
        raise UserError(str(error)) from error


def _output_of_mo(namespace: argparse.Namespace) -> str:
    """Returns the .xml that mo will write with these options."""
    from openvino.tools.mo.utils.cli_parser import get_model_name_from_args

    # The function stores the name in the namespace, and mo would take it for an option of the user; so it gets a copy.
    name = get_model_name_from_args(argparse.Namespace(**vars(namespace)))
    return os.path.join(namespace.output_dir, f"{name}.xml")


def _noting(original: Callable[..., Any], compressed: list[bool]) -> Callable[..., Any]:
    """Wraps mo's ``_convert``, so that each call notes whether FP16 weights were asked for.

    Args:
        original: the function.
        compressed: its contents are replaced by that one value.
    """

    @functools.wraps(original)
    def _convert(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        compressed[:] = [bool(getattr(result[1], "compress_to_fp16", False))]
        return result

    return _convert
