"""A benchmark that measures, on the machines of a Ray cluster that have the devices.

    python -m benchmarks.remote --ray auto --on "GPU=Arc A770" --folder a770 field.measured resnet50

The script runs on a machine that `ov-hsdag worker` lends (docs/ray.md), as it would here; the machine needs ov-hsdag
with the extra `bench`, and not this package, which travels. Files of --folder travel as well, and what the script
writes comes back there: what it writes by default, and what its arguments name, relative to that folder. So a script
goes on with results that are in the folder, and a machine that is lost costs what it was measuring. Lines of progress
are printed as they come, tables at the end; the exit status is the script's. Without --on it runs on one machine of
each kind, whose files are in folders of their own; --on "CPU=EPYC" names a kind where no device but the CPU matters.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.workers import brought, start
from ov_hsdag.fleet.cluster import Cluster, Done
from ov_hsdag.fleet.job import OUT, Job
from ov_hsdag.fleet.machines import Kind, parse_on
from ov_hsdag.utils.errors import RunError, UserError

MEASURING = (
    "field.measured", "truth.large_decoder", "truth.legality_table", "truth.memory_prediction",
    "truth.mutations", "truth.onnx_node_cases", "truth.prediction_accuracy",
)  # fmt: skip
"""Scripts that measure, or compute with, devices by OpenVINO."""

# The one device that every machine has.
_ANY = "CPU"


def main() -> int:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ray", metavar="ADDRESS", required=True, help="the cluster")
    parser.add_argument("--on", metavar="GPU=NAME", action="append", default=[], help="which machines; several times")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="of what it continues and writes")
    parser.add_argument("script", metavar="SCRIPT", choices=MEASURING, help=", ".join(MEASURING))
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="…", help="its arguments")
    options = parser.parse_args()
    devices = list(dict.fromkeys(name for text in options.on for name in parse_on(text))) or [_ANY]
    with Cluster(options.ray, brought()) as cluster:
        import openvino as ov

        kinds, others = cluster.kinds(devices, ov.__version__, options.on)
        for machine in others:
            print(f"warning: {machine.host} is left out, as it has other releases", file=sys.stderr)
        several = len(options.on) != 1
        folders = [options.folder / kind.name if several else options.folder for kind in kinds]
        jobs = [
            (kind, job_of(options.script, options.words, folder), folder)
            for kind, folder in zip(kinds, folders, strict=True)
        ]
        results = cluster.run(jobs, lambda _, text: _print(text), lambda _, text: _print(text))
    return max(_shown(kind, result) for kind, result in zip(kinds, results, strict=True))


def job_of(script: str, words: Sequence[str], folder: Path) -> Job:
    """A script as a job.

    Args:
        script: of `MEASURING`.
        words: its arguments.
        folder: whose files it finds, and its files are brought to.
    """
    files = {
        f"{OUT}/{path.relative_to(folder).as_posix()}": path for path in sorted(folder.rglob("*")) if path.is_file()
    }
    told = (script, *words)
    return Job(told, files, saved=OUT, resumed=told, program=f"{__name__}:run", statuses=(0, 1))


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _shown(kind: Kind, result: Done | UserError | RunError) -> int:
    """Prints what a script printed, or why it failed; the exit status."""
    if isinstance(result, UserError | RunError):
        _print(f"error: {result}")
        return 2 if isinstance(result, UserError) else 1
    print(f"{kind.describe()}:\n{result.out}", flush=True)
    return result.status


def run() -> None:
    """What a job does: the script named by the first argument, in the job's folder, on the machine that measures.

    It gets a copy of this package of its own, whose folder of results is the one that comes back.
    """
    here = Path.cwd()
    out = here / OUT
    out.mkdir(exist_ok=True)
    package = here / "benchmarks"
    shutil.copytree(Path(__file__).parent, package, ignore=shutil.ignore_patterns("results", "__pycache__"))
    (package / "results").symlink_to(out, target_is_directory=True)
    # For the script, and for the processes that it starts.
    sys.path.insert(0, str(here))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    os.chdir(out)
    script = sys.argv.pop(1)
    runpy.run_module(f"benchmarks.{script}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    start(__spec__)
