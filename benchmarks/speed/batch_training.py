"""Measures how much faster training in batches, as `pretrain` does, is than training by one problem at a time.

    python -m benchmarks.speed.batch_training [--problems 64] [--steps 15]

A step has 16 problems of generated graphs. It consists of the network's forward pass, parsing, the losses of imitation,
edges and entropy, and gradients. One way takes a problem at a time; the other joins all problems of the step with
equally many devices into one graph, as training does. Both take the same problems in turns. Printed are the median
processor time of a step with one thread, and the ratio of the two with its quartiles over steps.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.machine import about
from benchmarks.common.output import add_output
from benchmarks.common.tables import markdown, write
from benchmarks.common.workers import start
from ov_hsdag.policy.config import HSDAGConfig, Widths
from ov_hsdag.storage.files import write_json
from ov_hsdag.training.corpus import Corpus, write_generated
from ov_hsdag.training.loss import edge_loss, imitation_loss
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.training.problems import SHARD, Pool, Targets
from ov_hsdag.training.rollout import Example, Policy, run_policies, run_policy
from ov_hsdag.training.settings import Settings

SMOKE_ARGUMENTS = "--problems 16 --steps 2"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

FASTER = 1.5
"""Ratio from which on training in batches is worth its code."""

SETTINGS = Settings()


def loss(policy: Policy, example: Example) -> Tensor:
    """The loss of a problem in pretraining by imitation, a scalar. policy: output of the network for the example."""
    cloning = imitation_loss(policy, example) + SETTINGS.edge_coef * edge_loss(policy, example)
    return cloning - SETTINGS.ent_coef * policy.entropy.clamp(max=SETTINGS.target_entropy)


def step_by_problem(network: HSDAGNetwork, examples: Sequence[Example]) -> None:
    """Adds the gradients of all examples to the network, one example at a time."""
    for example in examples:
        loss(run_policy(network, example, levels=1), example).backward()  # type: ignore[no-untyped-call]


def step_in_batches(network: HSDAGNetwork, examples: Sequence[Example]) -> None:
    """Adds the gradients of all examples to the network, those with equally many devices at once."""
    ordered = sorted(examples, key=_devices)
    for _, group in itertools.groupby(ordered, _devices):
        together = list(group)
        policies = run_policies(network, together, levels=1)
        total = torch.stack([loss(*each) for each in zip(policies, together, strict=True)]).sum()
        total.backward()  # type: ignore[no-untyped-call]


def _devices(example: Example) -> int:
    """The number of devices of an example's problem."""
    return len(example.problem.devices)


def examples_of(count: int, folder: Path) -> list[Example]:
    """Makes a corpus of generated graphs and returns its first training problems, without those that training skips.

    Args:
        count: number of graphs.
        folder: folder of the corpus.
    """
    write_generated(folder, count=count)
    corpus = Corpus.load(folder, seed=1)
    pool, shards = Pool(corpus, Targets(corpus, folder), 0), -(-count // SHARD)
    return [pool[index] for index in range(pool.count(shards))]


def measure(network: HSDAGNetwork, examples: Sequence[Example], steps: int) -> list[tuple[float, float]]:
    """Measures steps in both ways. The first step warms both up and is left out.

    Args:
        network: the network, whose gradients are changed.
        examples: the problems from which steps draw.
        steps: number of steps.

    Returns:
        Processor seconds of each step: one problem at a time, and in batches.
    """
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(steps + 1):
        drawn = generator.choice(len(examples), min(SETTINGS.batch_size, len(examples)), replace=False)
        problems = [examples[index] for index in drawn]
        rows.append((_seconds(step_by_problem, network, problems), _seconds(step_in_batches, network, problems)))
    return rows[1:]


def _seconds(way: Callable[[HSDAGNetwork, Sequence[Example]], None], network: HSDAGNetwork, examples: Any) -> float:
    """Processor seconds of a step."""
    network.zero_grad()
    begin = time.process_time()
    way(network, examples)
    return time.process_time() - begin


def row_of(steps: Sequence[tuple[float, float]]) -> list[str]:
    """The row of the table: median times and the ratio. steps: seconds of both ways, see `measure`."""
    by_problem, in_batches = zip(*steps, strict=True)
    low, middle, high = np.quantile(np.divide(by_problem, in_batches), (0.25, 0.5, 0.75))
    times = (f"{1e3 * statistics.median(seconds):.0f}" for seconds in (by_problem, in_batches))
    return [f"a step of {SETTINGS.batch_size} problems", *times, f"{middle:.2f} ({low:.2f} to {high:.2f})"]


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problems", type=int, default=64, help="that steps draw from (default %(default)s)")
    parser.add_argument("--steps", type=int, default=15, help="of each way (default %(default)s)")
    add_output(parser, "JSON of the results, and the table in Markdown beside it")
    options = parser.parse_args()
    torch.set_flush_denormal(True)  # as `pretrain`
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        examples = examples_of(options.problems, Path(folder))
    network = HSDAGNetwork(HSDAGConfig.base(Widths.of(examples[0].x)))
    torch.set_num_threads(1)
    steps = measure(network, examples, options.steps)
    result = {"about": about(), "steps": steps}
    if options.output is not None:
        write_json(options.output, result)
    table = markdown(["", "a problem at a time, ms", "in batches, ms", "times as fast (quartiles)"], [row_of(steps)])
    write(options.output, result, {f"Training uses batches, which it would from {FASTER} times on:": table})
    return 0


if __name__ == "__main__":
    start(__spec__)
