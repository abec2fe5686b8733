"""The RNN placer: Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML 2017.

A sequence-to-sequence network reads the operations of a graph and writes a device for each; it learns from the run
times of the placements that it draws. The paper's sections are in:

    3.1  policy gradients          `learn`
    3.2  architecture              `Network`
    3.3  co-locating operations    `research.baselines.units.colocated`
    3.4  distributed training      `Distributed`: controllers in processes of their own

Some choices are not made in the paper, which leaves them to TensorFlow or its machines. Run times are divided by the
time on the fastest devices, so that one constant and one learning rate serve models of all sizes. Each controller has
its own state of Adam, where the paper has one parameter server. Devices that do not support an operation of a unit are
masked. In each step the decoder also reads the encoder's state of the operation.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ov_hsdag.utils.errors import RunError
from research.baselines import learning
from research.baselines.budget import BudgetSpent, Environment
from research.baselines.units import SHAPE_DIMENSIONS, UnitGraph, units

Measure = Callable[[NDArray[np.uint8]], NDArray[np.float64]]
"""Measures placements, uint8 [batch, groups] → seconds [batch]; raises BudgetSpent."""

PATIENCE = 5.0
"""Seconds to wait for a controller's message before checking that all controllers are alive."""


@dataclass(frozen=True)
class RNN:
    """The baseline and its settings."""

    hidden: int = 64  # width of both LSTMs (512 in the paper)
    embedding: int = 16  # width of the embeddings of types and devices
    batch: int = 10  # placements that are drawn for each update
    learning_rate: float = 3e-3  # learning rate of Adam
    decay: float = 0.9  # decay of the moving average of rewards
    # Weight of an entropy bonus, which the paper lacks: without it, learning from hundreds of measurements converges to
    # a single device.
    entropy: float = 0.3
    norm: float = 1.0  # largest norm of the gradient
    settled: int = 5000  # updates after which infeasible placements are ignored
    colocate: bool = True  # whether the paper's rule of co-location applies
    controllers: int = 1  # processes that draw placements; with several, results depend on their timing
    updates: int | None = None  # updates of each controller; None for as many as the budget allows

    def place(self, environment: Environment, seed: int) -> None:
        """Learns to place the environment's problem from scratch."""
        graph = units(environment.problem, self.colocate)
        with learning.seeded(seed):
            network = Network(graph, self)
            if self.controllers == 1:
                learn(network, graph, environment.costs, self)
                return
        Distributed(environment, graph, network, self).run(seed)


class Network(nn.Module):
    """The sequence-to-sequence model of section 3.2, for one graph."""

    def __init__(self, graph: UnitGraph, settings: RNN) -> None:
        super().__init__()
        hidden, embedding = settings.hidden, settings.embedding
        device_count = graph.supported.shape[1]
        # The features of an operation are its type, its output shape and its row of the adjacency matrix.
        types, type_number = np.unique(graph.main_type, return_inverse=True)
        features = np.concatenate([graph.shapes, graph.adjacency], axis=1).astype(np.float32)
        self.type_number: Tensor
        self.features: Tensor
        self.supported: Tensor
        self.register_buffer("type_number", torch.from_numpy(type_number))
        self.register_buffer("features", torch.from_numpy(features))
        self.register_buffer("supported", torch.from_numpy(graph.supported))
        self.types = nn.Embedding(len(types), embedding)
        # The additional last embedding is the decoder's input at the first operation.
        self.devices = nn.Embedding(device_count + 1, embedding)
        self.encoder = nn.LSTM(embedding + SHAPE_DIMENSIONS + graph.size, hidden)
        self.decoder = nn.LSTMCell(embedding + hidden, hidden)
        # Content-based attention (Bahdanau et al., ICLR 2015).
        self.of_encoder = nn.Linear(hidden, hidden, bias=False)
        self.of_decoder = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.output = nn.Linear(2 * hidden, device_count)

    def forward(self, batch: int, greedy: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Draws placements.

        Args:
            batch: number of placements.
            greedy: take the most probable device in each step.

        Returns:
            Devices, int64 [batch, units]; their joint log-probability, float32 [batch]; the mean entropy of their
            distributions, summed over steps, a scalar.
        """
        # The encoder reads all operations in topological order.
        states, (h, c) = self.encoder(torch.cat([self.types(self.type_number), self.features], dim=1))
        keys = self.of_encoder(states)
        # The decoder begins with its last state, and writes a device in each step.
        h, c = h.expand(batch, -1), c.expand(batch, -1)
        device = torch.full((batch,), self.devices.num_embeddings - 1)
        devices, log_probability, entropy = [], torch.zeros(batch), torch.zeros(())
        for state, supported in zip(states, self.supported, strict=True):
            h, c = self.decoder(torch.cat([self.devices(device), state.expand(batch, -1)], dim=1), (h, c))
            weight = torch.softmax(self.score(torch.tanh(keys + self.of_decoder(h)[:, None])).squeeze(-1), dim=1)
            logits = self.output(torch.cat([h, weight @ states], dim=1))
            step = learning.masked(logits, supported)
            device = learning.draw(step, greedy)
            devices.append(device)
            log_probability = log_probability + learning.taken(step, device)
            entropy = entropy + learning.entropy(step)
        return torch.stack(devices, dim=1), log_probability, entropy


def learn(network: Network, graph: UnitGraph, measure: Measure, settings: RNN) -> None:
    """Learns until the budget is spent, or for `settings.updates` updates (section 3.1).

    Args:
        network: the policy, which is changed.
        graph: the graph of the network.
        measure: measures placements.
        settings: settings of the baseline.

    Raises:
        BudgetSpent: `measure` raised it.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    baseline = learning.MovingAverage(settings.decay)
    update = 0
    while settings.updates is None or update < settings.updates:
        # Draw a batch of placements, and measure them.
        devices, log_probability, entropy = network(settings.batch)
        costs = measure(graph.expand(devices.numpy()))
        # The reward is -√(run time), or a large negative constant where infeasible, minus a moving average.
        rewards = learning.rewards(costs, graph.reference)
        advantages = learning.scaled(baseline.advantage(rewards), costs)
        if update >= settings.settled:
            advantages = np.where(np.isfinite(costs), advantages, 0.0)
        # REINFORCE.
        loss = -(torch.from_numpy(advantages.astype(np.float32)) * log_probability).mean()
        learning.step(optimizer, network, loss - settings.entropy * entropy, settings.norm)
        update += 1


class Distributed:
    """Runs controllers in processes of their own, and their worker in this one (section 3.4).

    The controllers update shared parameters without waiting for each other; each has its own moving average. This
    process owns the environment and measures the placements that they draw.
    """

    def __init__(self, environment: Environment, graph: UnitGraph, network: Network, settings: RNN) -> None:
        """Moves the network to shared memory; `run` starts the controllers.

        Args:
            environment: measures placements.
            graph: the graph of the network.
            network: the policy; it is moved to shared memory and changed.
            settings: settings of the baseline.
        """
        self.served = [0] * settings.controllers  # batches that were measured for each controller
        self._environment = environment
        self._graph = graph
        self._settings = settings
        self._network = network.share_memory()
        # Forked children of a process that has used torch's threads can hang.
        self._context = torch.multiprocessing.get_context("spawn")

    def run(self, seed: int) -> None:
        """Serves the controllers until the budget is spent or all have made their updates.

        Args:
            seed: seeds the controllers, together with their numbers.

        Raises:
            BudgetSpent: the budget is spent.
            RunError: a controller died.
        """
        requests, pipes, processes = self._context.Queue(), [], []
        for number in range(self._settings.controllers):
            ours, theirs = self._context.Pipe()
            arguments = (number, seed, self._network, self._graph, self._settings, requests, theirs)
            processes.append(self._context.Process(target=_controller, args=arguments, daemon=True))
            pipes.append(ours)
        try:
            for process in processes:
                process.start()
            self._serve(requests, pipes, processes)
        finally:
            for process, pipe in zip(processes, pipes, strict=True):
                if process.is_alive():
                    pipe.send(None)
            for process in processes:
                process.join(PATIENCE)
                if process.is_alive():
                    process.terminate()

    def _serve(self, requests: Any, pipes: list[Any], processes: list[Any]) -> None:
        """Measures placements that controllers send, until all controllers have ended.

        Args:
            requests: queue of (number of the controller, placements or None at its end, its processor time in s).
            pipes: for each controller the pipe that takes the costs.
            processes: the controllers.
        """
        charged = [0.0] * len(processes)
        working, begun = set(range(len(processes))), set()
        waiting: list[tuple[int, NDArray[np.uint8] | None]] = []
        while working:
            try:
                number, placements, seconds = requests.get(timeout=PATIENCE)
            except queue.Empty as error:
                if dead := [n for n in working if processes[n].exitcode not in (None, 0)]:
                    raise RunError(f"controller {dead[0]} ended with {processes[dead[0]].exitcode}") from error
                continue
            # The processor time of controllers counts against the budget.
            self._environment.charge(seconds - charged[number])
            charged[number] = seconds
            begun.add(number)
            waiting.append((number, placements))
            if len(begun) < len(processes):
                continue  # a process that starts earlier must not spend the budget alone
            for sender, drawn in waiting:
                if drawn is None:
                    working.discard(sender)
                else:
                    pipes[sender].send(self._environment.costs(drawn))
                    self.served[sender] += 1
            waiting.clear()


def _controller(
    number: int, seed: int, network: Network, graph: UnitGraph, settings: RNN, requests: Any, pipe: Any
) -> None:
    """Runs in a controller's process: draws placements, sends them to the worker, and learns from its answers.

    Args:
        number: number of the controller.
        seed: seeds torch, together with the number.
        network: the policy in shared memory.
        graph: the graph of the network.
        settings: settings of the baseline.
        requests: queue to the worker, see `Distributed._serve`.
        pipe: answers of the worker: costs, or None if the budget is spent.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed * 1000 + number)

    def measure(placements: NDArray[np.uint8]) -> NDArray[np.float64]:
        requests.put((number, placements, time.process_time()))
        costs: NDArray[np.float64] | None = pipe.recv()
        if costs is None:
            raise BudgetSpent
        return costs

    try:
        learn(network, graph, measure, settings)
        requests.put((number, None, time.process_time()))
    except BudgetSpent:
        pass
