"""How a Ray cluster schedules our tasks: many simulated workers on a driver, and teacher searches on 1, 2, 3 nodes.

    python benchmarks/fleet.py --workers 1000 --tasks 60

Simulated workers: each would take `--tasks` tasks of a second. All of these tasks go through a driver, as `pretrain
--ray` sends them, to two processes that do nothing for them but return. The driver is no bottleneck as long as that
takes less time than the workers would, `--tasks` seconds; with one task in a message, and with batches as `Cluster.map`
makes them of short tasks. Its own CPU time says how much of it is the driver's work.

Teacher searches: shards of 16 problems of generated graphs, on nodes of one core each, on this machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ov_hsdag.fleet import cluster as clusters
from ov_hsdag.fleet.cluster import Cluster
from ov_hsdag.training.corpus import Corpus, generated_template
from ov_hsdag.training.targets import Target, searched
from ov_hsdag.utils.files import write_json
from tests import ray_cluster


def nothing(number: int) -> int:
    """A task."""
    return number


def generated_corpus(graphs: int) -> Corpus:
    """A corpus of random graphs."""
    templates = tuple(generated_template(np.random.default_rng(seed), 0) for seed in range(graphs))
    return Corpus(templates, tuple(f"generated/{number}" for number in range(graphs)))


def simulated(address: str, workers: int, tasks: int, batch: int) -> dict[str, Any]:
    """All tasks of the workers through one driver. batch: tasks in a message, at most."""
    most, clusters._MOST_IN_BATCH = clusters._MOST_IN_BATCH, batch
    count = workers * tasks if batch > 1 else workers * tasks // 20
    try:
        with Cluster(address) as cluster:
            assert list(cluster.map(nothing, range(8))) == list(range(8))  # processes have started
            begin, own = time.perf_counter(), time.process_time()
            assert sum(1 for _ in cluster.map(nothing, range(count))) == count
            seconds, own = time.perf_counter() - begin, time.process_time() - own
    finally:
        clusters._MOST_IN_BATCH = most
    return {
        "workers": workers,
        "tasks": count,
        "tasks_in_a_message": batch,
        "seconds": round(seconds, 2),
        "tasks_per_second": round(count / seconds),
        "driver_cpu_seconds": round(own, 2),
        "workers_fed": round(count / seconds),  # of tasks of a second
    }


def same(first: Sequence[list[Target]], second: Sequence[list[Target]]) -> bool:
    """Whether two searches found the same."""
    return all(
        np.array_equal(a.placement, b.placement) and a.score == b.score
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def scaling(shards: int) -> list[dict[str, Any]]:
    """Seconds of the same searches on 1, 2 and 3 nodes, and whether they found the same."""
    found, first = [], None
    corpus = generated_corpus(6)
    with tempfile.TemporaryDirectory() as folder, ray_cluster.nodes(Path(folder)) as there:
        for nodes in (1, 2, 3):
            there.computing()
            with Cluster(there.address) as cluster:
                search = functools.partial(searched, corpus)
                list(cluster.map(search, range(nodes)))  # processes have started
                begin = time.perf_counter()
                results = list(cluster.map(search, range(shards)))
                seconds = time.perf_counter() - begin
            first = first or results
            found.append({"nodes": nodes, "seconds": round(seconds, 1), "same": same(first, results)})
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=60, help="of each worker")
    parser.add_argument("--shards", type=int, default=12, help="of teacher searches")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ray_cluster.nodes(Path(folder)) as there:
        there.computing(2)
        scheduled = [simulated(there.address, arguments.workers, arguments.tasks, batch) for batch in (1, 512)]
    document = {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "scheduling": scheduled,
        "teacher_searches": scaling(arguments.shards),
    }
    print(json.dumps(document, indent=2))
    if arguments.output:
        write_json(arguments.output, document)


if __name__ == "__main__":
    main()
