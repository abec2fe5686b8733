"""Where the time of `ov_hsdag.place()` goes.

OpenVINO's own work is told apart: its common transformations (inside "normalise") and what devices are asked (inside
"support" and before it). "placing" is the rest up to the decision: extraction, legality, costs, placers; "writing" puts
it into the model. The phases are wall time; the last lines count CPU time of the calling thread, which other work on
the machine does not change much, and the exit status is 1 when the median of "placing" exceeds the limit there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openvino as ov
from openvino import _offline_transformations

import ov_hsdag
from ov_hsdag.model.placement import Placement
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.timing import Clock
from research.zoo.catalog import select

LIMIT_S = 0.25
TRANSFORMATIONS, QUERIES, WRITING = "OpenVINO's transformations", "device queries", "writing"


class Meter:
    """CPU seconds of the calling thread in parts of a call of `place`."""

    def __init__(self) -> None:
        self.part = Clock(time.thread_time)
        self.seconds = self.part.seconds
        self.seconds.update(dict.fromkeys((TRANSFORMATIONS, QUERIES, WRITING), 0.0))

    def timed(self, key: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with self.part(key):
                return function(*arguments, **options)

        return call

    @contextmanager
    def watching(self, *parts: tuple[Any, str, str]) -> Iterator[None]:
        """Times functions, given as (owner, name, key), while inside."""
        originals = [(owner, name, getattr(owner, name)) for owner, name, _ in parts]
        for owner, name, key in parts:
            setattr(owner, name, self.timed(key, getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)


class MeteredCore(ov.Core):
    """A Core whose answers about devices are timed."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def query_model(self, *arguments: Any, **options: Any) -> Any:
        with self._meter.part(QUERIES):
            return super().query_model(*arguments, **options)

    def get_property(self, *arguments: Any, **options: Any) -> Any:
        with self._meter.part(QUERIES):
            return super().get_property(*arguments, **options)

    @property
    def available_devices(self) -> list[str]:
        with self._meter.part(QUERIES):
            return super().available_devices


def measure(model: ov.Model, device: str, objective: str) -> tuple[dict[str, float], dict[str, float]]:
    """Wall seconds by phase, and CPU seconds by part, of one call of `place`."""
    meter = Meter()
    core = MeteredCore(meter)
    parts = (
        (_offline_transformations, "apply_moc_transformations", TRANSFORMATIONS),
        (Placement, "apply", WRITING),
        (Placement, "embed", WRITING),
    )
    with meter.watching(*parts):
        start, start_cpu = time.perf_counter(), time.thread_time()
        placement = ov_hsdag.place(model, device, objective=objective, core=core)
        cpu, wall = time.thread_time() - start_cpu, time.perf_counter() - start
    phases = {**placement.seconds, "total": wall}
    return phases, {"placing": cpu - sum(meter.seconds.values()), **meter.seconds, "total": cpu}


def show(title: str, runs: list[dict[str, float]]) -> None:
    print(f"{title}, ms: median (fastest) of {len(runs)}")
    for key in runs[0]:
        values = [run[key] * 1e3 for run in runs]
        print(f"  {key:28} {statistics.median(values):8.1f} ({min(values):.1f})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="swin-tiny", help="a model of the zoo (default %(default)s)")
    parser.add_argument("--device", default="HETERO:GPU,CPU", help="device list (default %(default)s)")
    parser.add_argument("--objective", default="latency", choices=("latency", "throughput"))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for placing (default %(default)s)")
    arguments = parser.parse_args()

    runs = []
    try:
        (zoo_model,) = select([arguments.model])
        # The first run is not counted: imports, and OpenVINO's plugins are loaded.
        for _ in range(arguments.repeats + 1):
            runs.append(measure(zoo_model.build(), arguments.device, arguments.objective))
    except (UserError, ValueError) as error:
        parser.error(str(error))
    print(f"{zoo_model.name} on {arguments.device}, {arguments.objective}")
    show("wall time by phase", [phases for phases, _ in runs[1:]])
    show("CPU time by part", [parts for _, parts in runs[1:]])
    placing = statistics.median(parts["placing"] for _, parts in runs[1:])
    return 0 if placing <= arguments.limit else 1


if __name__ == "__main__":
    sys.exit(main())
