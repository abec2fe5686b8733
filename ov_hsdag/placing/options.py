"""The options of placing, which Python, the command line, passes, converters and jobs for other machines share.

A new option is added here and nowhere else. The command line gets a flag for each option that has a help text,
`ov_hsdag.place` and `HSDAGPlacement` take it by its name, and jobs for other machines get its value.
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
    """The command line flag of an option.

    Attributes:
        kind: type of a value: str, int, float, bool (a pair of flags) or "file" (a path).
        metavar: placeholder of the value in the help; "" for the type's own.
        help: help text, one or two sentences.
        name: name of the flag without dashes; "" for the option's own name.
        several: whether the flag can be given several times.
        least: smallest number that is accepted; None for no bound.
        converters: whether ovc and mo have the flag as well, as --placement_NAME.
    """

    kind: type | str
    metavar: str
    help: str
    name: str = ""
    several: bool = False
    least: float | None = None
    converters: bool = False

    def word(self, option: str) -> str:
        """The flag as users type it, such as "--kv-precision"; `option` is the name of its option."""
        return f"--{(self.name or option).replace('_', '-')}"


def _flag(kind: type | str, metavar: str, text: str, *, default: Any = None, **more: Any) -> Any:
    """Makes a field of `PlaceOptions` that has a command line flag; for the arguments see `Flag`."""
    return field(default=default, metadata={"flag": Flag(kind, metavar, text, **more)})


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """All options of placing a model except the model and its devices.

    Attributes:
        objective: "latency" of one request or "throughput" of many in flight.
        profile: speeds of the devices, or the path of a profile's file; built-in profiles by default.
        policy: name or folder of the HSDAG policy that proposes a placement as well; by default the one that was
            fine-tuned on these devices, if there is one, else "base", which ships. "none": no policy is used.
        affinity: a fixed placement, or its file, that is taken instead of choosing one: {node: device}.
        pin: operations that stay on a device while the rest is searched: {"PATTERN": "DEVICE"}, or a list of
            "PATTERN=DEVICE". A pattern matches friendly names, with * and ? as in file names, or types, as in
            "type:Softmax".
        experts: device of the routed experts of a mixture of experts: "CPU", or "CPU:20" for the experts of the first
            20 layers; everything else is on the first device.
        memory: memory limits of the model by device, bytes or "8GiB"; they replace those of the profile.
        shapes: example shapes of dynamic inputs for the cost model and for measuring, by input name.
        inputs: inputs to measure with instead of made-up ones: by input name ("" for the only one) an array, the path
            of a .npy, .npz, .png or .txt file, or a list of these, one for each sample. Their sizes count as shapes.
        static: whether the model's inputs get these shapes for good.
        workload: workload of a decoder with states, such as "prompt=1024,generate=256". Times are then means over its
            inferences; `Placement.predicted`, and `Placement.measured` of each candidate, have the figures of each kind
            of inference under "workload".
        context: tokens that the states must have memory for. Without a workload, memory also holds a prompt of that
            length, while times are those of an inference at half of it, 256 tokens at most.
        kv_precision: precision in which devices keep KV caches of decoders: "u8", "f16", "bf16" or "f32". It counts for
            memory and is written into the model for its devices. By default what model and devices choose.
        measure: whether to measure on the devices: first the costs of the model's operations (unless `costs` has them),
            then the best predicted placements, in separate processes, against each single device and HETERO's own
            choices. The measurements decide. By default `ov_hsdag.place` chooses by prediction.
        measure_seconds: time budget of both measurements together, seconds; 60 by default. Costs that there is no time
            to measure come from the profile, which a warning says.
        search_seconds: time of the search for a placement on each core, seconds; its result then depends on the speed
            of the machine. By default the search ends when independent searches agree or have made a fixed number of
            moves, and its result is always the same.
        costs: measured costs of `ov-hsdag calibrate --model`, or their file. They are used for the devices that they
            were measured on, which `Placement.predicted` names under "measured_costs".
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
        float,
        "",
        "Time for searching a placement; by default until searches agree, with the same result always.",
        least=0.001,
    )
    costs: ModelCosts | str | PathLike[str] | None = None

    @classmethod
    def of(cls, options: PlaceOptions | None, given: Mapping[str, Any]) -> PlaceOptions:
        """Replaces some of the options, and checks the types of all.

        Args:
            options: the options to begin with; the defaults where it is None.
            given: new values by name; None leaves an option as it is.

        Returns:
            The options.

        Raises:
            TypeError: there is no option of such a name.
            UserError: a value is of another type than its option.
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
    """Resolves the types of the options, by name, once.

    The modules that define the types are imported here, as they are slow to import.
    """
    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.costs.stored import ModelCosts
    from ov_hsdag.model.placement import Placement
    from ov_hsdag.model.workload import Workload

    types = (Profile, ModelCosts, Placement, Workload)
    return get_type_hints(PlaceOptions, localns={one.__name__: one for one in types})


def flags() -> dict[str, Flag]:
    """The command line flags, by name of their option."""
    return {one.name: one.metadata["flag"] for one in fields(PlaceOptions) if "flag" in one.metadata}


def default_of(name: str) -> Any:
    """The default of the option named `name`."""
    (default,) = (one.default for one in fields(PlaceOptions) if one.name == name)
    assert default is not MISSING
    return default
