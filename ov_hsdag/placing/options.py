"""What a placing can be asked for. Python, the command line, passes, converters and jobs for other machines share it.

An option is added here alone: the command line has a flag for each that has help, `ov_hsdag.place` and
`HSDAGPlacement` take it by its name, and jobs for other machines get its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from os import PathLike
from typing import TYPE_CHECKING, Any, get_type_hints

from ov_hsdag.utils.arguments import check_argument

if TYPE_CHECKING:
    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.costs.stored import ModelCosts
    from ov_hsdag.model.placement import Placement
    from ov_hsdag.model.workload import Workload


@dataclass(frozen=True)
class Flag:
    """How an option is given in a command line."""

    kind: type | str  # what a value is: str, int, float, bool (a pair of flags) or "file" (a path)
    metavar: str  # what stands for a value in the help; "" for the type's own
    help: str  # one or two sentences
    name: str = ""  # without dashes, where it is not the option's
    several: bool = False  # the flag can be given several times
    least: float | None = None  # the smallest number
    converters: bool = False  # ovc and mo have it, too, as --placement_NAME

    def word(self, option: str) -> str:
        """The flag as it is typed: "--kv-precision"; option: the option's name."""
        return f"--{(self.name or option).replace('_', '-')}"


def _flag(kind: type | str, metavar: str, text: str, *, default: Any = None, **more: Any) -> Any:
    """A field of `PlaceOptions` that command lines have; for the arguments see `Flag`."""
    return field(default=default, metadata={"flag": Flag(kind, metavar, text, **more)})


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Everything that a placing can be asked for, beside the model and its devices.

    Attributes:
        objective: "latency" of one request or "throughput" of many in flight.
        profile: speeds of the devices, or the path of a profile's file; built-in profiles by default.
        policy: name or folder of the HSDAG policy that proposes a placement as well; by default the one that was
            fine-tuned on these devices, if there is one, else "base", which ships. "none": no policy is used.
        affinity: a placement that is given (or a file of one) instead of decided: {node: device}.
        pin: operations that stay on a device while the rest is searched: {"PATTERN": "DEVICE"}, or "PATTERN=DEVICE"
            each. Patterns are of friendly names, with * and ? as in names of files, or of types: "type:Softmax".
        experts: where the routed experts of a mixture of experts are: "CPU", or "CPU:20" for those of the first 20
            layers; everything else is on the first device.
        memory: what the model may have on a device, by the device's name, in place of the profile's limits: a number of
            bytes, or "8GiB".
        shapes: example shapes of dynamic inputs for the cost model, and for measuring, by input name.
        inputs: what the model is measured with, instead of made-up inputs: by input name ("" for the only one) an
            array, the path of a .npy, .npz, .png or .txt file, or a list of these, a sample each. Their sizes count.
        static: the model's inputs get these sizes for good.
        workload: what a decoder with states is asked for, such as "prompt=1024,generate=256": times are means over
            these inferences, and `Placement.predicted`, and `Placement.measured` of each candidate, have each kind of
            them under "workload".
        context: tokens that the states must have memory for; without a workload a prompt of as many, too, while times
            are of one of half of them, 256 at most.
        kv_precision: "u8", "f16", "bf16" or "f32": in which devices keep the states of decoders that attention reads;
            counted in memory, and written into the model for its devices. By default what model and devices choose.
        measure: measure what the model's operations cost on the devices (unless `costs` tell), and then the best
            predicted placements (in processes of their own) against each single device and HETERO's own choices; choose
            by that. By default `ov_hsdag.place` chooses by prediction.
        measure_seconds: time budget of both together, seconds; 60 by default. What there is no time to measure comes
            from the profile, and a warning says what.
        search_seconds: time of the search for a placement, on each core; what it finds then depends on how fast the
            machine is. By default until four independent searches agree, 0.1 to 2 s, with the same result always.
        costs: what `ov-hsdag calibrate --model` measured (or its file); used for the devices that it holds for, which
            `Placement.predicted` names under "measured_costs".
    """

    objective: str = _flag(str, "latency|throughput", "What is to be best.", default="latency", converters=True)
    profile: Profile | str | PathLike[str] | None = _flag(
        "file", "FILE.json", "Device profiles instead of the built-in ones.", converters=True
    )
    policy: str | PathLike[str] | None = _flag(
        str,
        "NAME|DIR",
        "The policy that proposes a placement as well; by default one that was fine-tuned on these devices, else"
        ' "base", which ships; "none" for no policy.',
        converters=True,
    )
    affinity: Mapping[str, str] | Placement | str | PathLike[str] | None = _flag(
        "file",
        "FILE.json",
        'Take {"node": "device"} from a file instead of deciding; nodes that it lacks follow their neighbours.'
        ' Names are those of "placement" in the output of --json.',
    )
    pin: Mapping[str, str] | Sequence[str] | None = _flag(
        str,
        "PATTERN=DEVICE",
        "Keep operations on DEVICE and search the rest under that condition: those whose names fit PATTERN, * and ? as"
        ' in names of files, or of a type with "type:Softmax=CPU". Can be given several times.',
        several=True,
    )
    experts: str | None = _flag(
        str,
        "DEVICE[:LAYERS]",
        "Put the routed experts of a mixture of experts on DEVICE, those of the first LAYERS or of all layers, and"
        " everything else on the first device.",
    )
    memory: Mapping[str, int | str] | None = _flag(str, "CPU=8GiB,GPU=2GiB", "What the model may have on a device.")
    shapes: Mapping[str, Sequence[int]] | None = _flag(
        str,
        "NAME=[1,128]",
        "Example shape of a dynamic input, for costs, measuring and comparing; [1,3,224,224] where there is one"
        " input. Can be given several times. The model itself keeps its shapes, unless --static is given"
        " or an NPU is among the devices.",
        name="shape",
        several=True,
    )
    inputs: Mapping[str, object] | None = _flag(
        str,
        "NAME=FILE",
        "Measure and compare with the inputs in this .npy, .npz, .png or .txt file instead of made-up ones; FILE alone"
        " where there is one input. Can be given several times, for several inputs or several samples of one.",
        name="input",
        several=True,
    )
    static: bool | None = _flag(bool, "", "Give the model the sizes of --shape for good, as NPUs want them.")
    workload: Workload | str | None = _flag(
        str,
        "prompt=1024,generate=256",
        "What a language model with states is asked for; batch=N counts sequences and beams.",
    )
    context: int | None = _flag(int, "TOKENS", "Tokens for whose states a language model must have memory.", least=2)
    kv_precision: str | None = _flag(
        str, "u8|f16|bf16|f32", "Precision of KV caches of language models; by default as model and devices choose."
    )
    measure: bool | None = _flag(
        bool,
        "",
        "Measure the best placements on the devices and choose by that; ov-hsdag place does so by default where all"
        " devices are here, ovc and mo do not.",
        converters=True,
    )
    measure_seconds: float | None = _flag(
        float, "", "Time for measuring operations and placements, about (default 60; plans: 30 a model).", least=1
    )
    search_seconds: float | None = _flag(
        float, "", "Time for searching a placement; by default 0.1 to 2 s, with the same result always.", least=0.001
    )
    costs: ModelCosts | str | PathLike[str] | None = None

    @classmethod
    def of(cls, options: PlaceOptions | None, given: Mapping[str, Any]) -> PlaceOptions:
        """Options with what is given besides, by their names; None leaves an option as it is.

        Raises TypeError: there is no such option; UserError: a value is of another type than the option.
        """
        unknown = sorted(given.keys() - {one.name for one in fields(cls)})
        if unknown:
            names = ", ".join(one.name for one in fields(cls))
            raise TypeError(f"there is no option '{unknown[0]}' of placing; there are {names}")
        made = replace(options or cls(), **{name: value for name, value in given.items() if value is not None})
        kinds = _kinds()
        for name, value in vars(made).items():
            if value is not None:
                check_argument(name, value, kinds[name])
        return made


@cache
def _kinds() -> dict[str, Any]:
    """Types of the options by their names; the modules that have them are imported for it."""
    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.costs.stored import ModelCosts
    from ov_hsdag.model.placement import Placement
    from ov_hsdag.model.workload import Workload

    known = (Profile, ModelCosts, Placement, Workload)
    return get_type_hints(PlaceOptions, localns={one.__name__: one for one in known})


def flags() -> dict[str, Flag]:
    """The options that command lines have, by their names."""
    return {one.name: one.metadata["flag"] for one in fields(PlaceOptions) if "flag" in one.metadata}


def default_of(name: str) -> Any:
    """An option's default."""
    (found,) = (one.default for one in fields(PlaceOptions) if one.name == name)
    assert found is not MISSING
    return found
