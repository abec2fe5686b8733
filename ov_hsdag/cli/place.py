"""`ov-hsdag place`: decide where each operation of a model runs and write the model with that decision inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console

if TYPE_CHECKING:
    from ov_hsdag.placement import Placement

Objective = Annotated[str, typer.Option("--objective", metavar="latency|throughput", help="What is to be best.")]
ProfileFile = Annotated[
    Path | None, typer.Option("--profile", metavar="FILE.json", help="Device profiles instead of the built-in ones.")
]
Policy = Annotated[
    str | None, typer.Option("--policy", metavar="NAME|DIR", help='The learned policy; "none" for none.')
]
AffinityFile = Annotated[
    Path | None,
    typer.Option("--affinity", metavar="FILE.json", help='Take {"node": "device"} from a file instead of deciding.'),
]


def place(
    model: common.Model,
    device: common.Device,
    output: common.Output,
    objective: Objective = "latency",
    profile: ProfileFile = None,
    policy: Policy = None,
    affinity: AffinityFile = None,
    as_json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Decide on which device each operation of MODEL runs and write an IR with the placement inside."""
    common.check_output(output)
    common.check_model(model)

    from ov_hsdag.devices import DeviceSet
    from ov_hsdag.problem import check_objective

    # Everything that can be wrong with the options comes before the minutes that a large model may take.
    check_objective(objective)
    devices = DeviceSet.parse(device)

    import openvino as ov

    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.files import save_model_atomically
    from ov_hsdag.place import place as place_model
    from ov_hsdag.place import policy_placers
    from ov_hsdag.placement import Placement

    policy_placers(policy)
    costs = Profile.load(profile) if profile else None
    given = Placement.load(affinity, devices.names).affinity if affinity else None

    with console.result(as_json) as show:
        core = ov.Core()
        with console.progress(f"reading {model}"):
            loaded = common.read_model(core, model)
            compressed = common.has_fp16_weights(loaded)
        with console.progress(f"placing {model} on {device}"):
            placement = place_model(
                loaded, device, objective=objective, profile=costs, policy=policy, affinity=given, core=core
            )
        with console.progress(f"writing {output}"):
            # Placing says where operations run and leaves weights as they were, compressed or exact.
            save_model_atomically(loaded, output, compress_to_fp16=compressed)
        show(_as_json(placement), f"{output}: {placement.summary()}", _table(placement))


def _as_json(placement: Placement) -> dict[str, Any]:
    return {
        "placement": placement.affinity,
        "devices": placement.devices,
        "objective": placement.objective,
        "predicted": placement.predicted,
        "measured": placement.measured,
        "baselines": placement.baselines,
        "policy": placement.policy,
        "chosen": placement.chosen,
        "seconds": placement.seconds,
    }


def _table(placement: Placement) -> Table:
    table = Table(box=None)
    table.add_column("placer")
    for column in ("latency, ms", "inferences/s", "submodels"):
        table.add_column(column, justify="right")
    for name, figures in _candidates(placement):
        latency, rate, submodels = (figures.get(key) for key in ("latency_us", "throughput_ips", "submodels"))
        table.add_row(
            f"{name} (chosen)" if name == placement.chosen else name,
            "-" if latency is None else f"{latency / 1000:.3f}",
            "-" if rate is None else f"{rate:.1f}",
            "-" if submodels is None else str(submodels),
        )
    return table


def _candidates(placement: Placement) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if placement.predicted is not None:
        yield placement.chosen, placement.predicted
    for name, figures in placement.baselines.items():
        if name != placement.chosen:
            yield name, figures
