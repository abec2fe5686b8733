"""How a Ray cluster schedules our tasks: many simulated workers on a driver, teacher searches and steps of pretraining.

    python benchmarks/fleet.py --workers 1000 --tasks 60

Simulated workers: each would take `--tasks` tasks of a second. All of these tasks go through a driver, as `pretrain
--ray` sends them, to two processes that do nothing for them but return. The driver is no bottleneck as long as that
takes less time than the workers would, `--tasks` seconds; with one task in a message, and with batches as `Cluster.map`
makes them of short tasks. Its own CPU time says how much of it is the driver's work.

Teacher searches: shards of 16 problems of generated graphs, on nodes of one core each, on this machine.

Steps of pretraining: the same steps of REINFORCE on 16 problems each, with the network that ships, as a whole and in
`--parts` parts in one process of one thread, then in parts on one node of one core, and on two; `--rounds` times in
turns. Problems are drawn before the clock runs. What a step costs beside computing is measured with parts that return
at once: a message to each node with the weights, and one from each part with a gradient.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ov_hsdag.fleet import cluster as clusters
from ov_hsdag.fleet.cluster import Cluster
from ov_hsdag.policy.features import policy_input
from ov_hsdag.storage.files import write_json
from ov_hsdag.training.config import HSDAGConfig, Widths
from ov_hsdag.training.corpus import Corpus, generated_template
from ov_hsdag.training.gradients import Gradients, Part, PartGradient, Spread, Update, deal, here, weights
from ov_hsdag.training.pool import Pool, Settings, batch_indices, shards_at
from ov_hsdag.training.pretrain import new_state, update
from ov_hsdag.training.targets import Target, Targets, searched
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


class AtOnce:
    """A part that computes nothing."""

    def __call__(self, update: Update, part: Part) -> PartGradient:
        """Returns a gradient of zeros."""
        return PartGradient(np.zeros_like(update.weights), np.zeros(len(part.indices)), None, {})


class Steps:
    """Steps of REINFORCE that can be made again and again."""

    def __init__(self, folder: Path, parts: int, steps: int) -> None:
        """Draws problems, and searches their placements.

        Args:
            folder: keeps the placements.
            parts: of a step.
            steps: to be timed.
        """
        corpus = generated_corpus(24)
        self.settings = Settings(problems=64, first_problems=64, imitation_steps=0, reinforce_steps=100, parts=parts)
        problem = next(problem for number in range(64) if (problem := corpus.draw(number)) is not None)
        self.config = HSDAGConfig.base(Widths.of(policy_input(problem)))
        self.pool = Pool(corpus, Targets(corpus, folder), 0, self.config)
        self.steps = steps
        self.pool.count(shards_at(self.settings, 0))

    def seconds(self, spread: Spread, parts: int | None = None) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """Returns seconds for a step, and the weights after the last one."""
        settings = replace(self.settings, parts=parts or self.settings.parts)
        compute = spread(Gradients(self.pool, settings, self.config))
        # In the first two runs all who compute make the examples that they need.
        for _ in range(3):
            state = new_state(settings, self.config)
            begin = time.perf_counter()
            for _ in range(self.steps):
                indices = batch_indices(settings, self.pool, state.step)
                update(state, settings, self.pool, indices, compute)
                state.step += 1
            seconds = (time.perf_counter() - begin) / self.steps
        return seconds, {name: value.numpy().copy() for name, value in state.network.state_dict().items()}

    def beside(self, cluster: Cluster, rounds: int = 100) -> float:
        """Returns the milliseconds of a step whose parts return at once."""
        state = new_state(self.settings, self.config)
        values = weights(state.network)
        compute = cluster.rounds(AtOnce())
        times = []
        for step in range(rounds + 10):
            begin = time.perf_counter()
            indices = batch_indices(self.settings, self.pool, step % self.steps)
            compute(Update(step, 0, values), deal(self.settings, self.pool, indices, state.baselines))
            times.append(time.perf_counter() - begin)
        return 1000 * statistics.median(times[10:])


def training(parts: int, steps: int, rounds: int) -> dict[str, Any]:
    """Seconds for a step of pretraining, in turns, and whether all weights are the same."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    seconds: dict[str, list[float]] = {}
    beside: dict[str, list[float]] = {}
    known: dict[str, NDArray[np.float32]] = {}
    agree = True

    def note(name: str, spread: Spread) -> None:
        nonlocal known, agree
        found, learned = own.seconds(spread)
        seconds.setdefault(name, []).append(found)
        known = known or learned
        agree &= all(np.array_equal(known[key], learned[key]) for key in known)

    with tempfile.TemporaryDirectory() as folder:
        own = Steps(Path(folder), parts, steps)
        for number in range(rounds):
            seconds.setdefault("here, as a whole", []).append(own.seconds(here, 1)[0])
            note("here, in parts", here)
            place = Path(folder) / str(number)
            place.mkdir()
            with ray_cluster.nodes(place) as there:
                for nodes in (1, 2):
                    there.computing()
                    name = f"in parts, {nodes} node{'s' * (nodes > 1)} of one core"
                    with Cluster(there.address) as cluster:
                        note(name, cluster.rounds)
                        beside.setdefault(name, []).append(own.beside(cluster))
    return {
        "parts": parts,
        "problems": own.settings.batch,
        "seconds_a_step": {name: round(statistics.median(values), 4) for name, values in seconds.items()},
        "all": {name: [round(value, 4) for value in values] for name, values in seconds.items()},
        "milliseconds_beside_computing": {name: round(statistics.median(values), 1) for name, values in beside.items()},
        "same": agree,
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=60, help="of each worker")
    parser.add_argument("--shards", type=int, default=12, help="of teacher searches")
    parser.add_argument("--parts", type=int, default=4, help="of a step of pretraining")
    parser.add_argument("--steps", type=int, default=20, help="of pretraining; 0: measure the rest alone")
    parser.add_argument("--rounds", type=int, default=3, help="in which steps of pretraining are measured")
    parser.add_argument("--training-alone", action="store_true", help="measure steps of pretraining and nothing else")
    parser.add_argument("--output", type=Path, help="JSON; what is not measured now stays as it is there")
    arguments = parser.parse_args()
    document: dict[str, Any] = {}
    if arguments.output and arguments.output.exists():
        document = json.loads(arguments.output.read_text())
    machine = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}
    if not arguments.training_alone:
        with tempfile.TemporaryDirectory() as folder, ray_cluster.nodes(Path(folder)) as there:
            there.computing(2)
            scheduled = [simulated(there.address, arguments.workers, arguments.tasks, batch) for batch in (1, 512)]
        document |= {**machine, "scheduling": scheduled, "teacher_searches": scaling(arguments.shards)}
    if arguments.steps:
        steps = training(arguments.parts, arguments.steps, arguments.rounds)
        document["pretraining_steps"] = {**machine, **steps}
    print(json.dumps(document, indent=2))
    if arguments.output:
        write_json(arguments.output, document)


if __name__ == "__main__":
    main()
