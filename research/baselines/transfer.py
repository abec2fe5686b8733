"""Policies that know no graph by heart: learned on many graphs together, they place others with or without learning."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from torch import nn

from research.baselines import learning
from research.baselines.budget import Environment

Network = TypeVar("Network", bound=nn.Module)
Task = TypeVar("Task")


class TransferablePolicy(ABC, Generic[Network, Task]):
    """A baseline whose network takes any graph with as many devices as those that it was trained on.

    Attributes:
        network: what `train` learned, None before.
    """

    network: Network | None

    def train(self, environments: Sequence[Environment], seed: int, episodes: int | None = None) -> None:
        """Learns a policy on several graphs together.

        Args:
            environments: with equally many devices.
            seed: of weights and draws.
            episodes: of learning, each with every graph; None: until all budgets are spent.
        """
        with learning.seeded(seed):
            tasks = [self._task(environment) for environment in environments]
            self.network = self._new(tasks[0])
            self._learn(self.network, tasks, episodes)

    def place(self, environment: Environment, seed: int, episodes: int | None = None) -> None:
        """Places with the trained policy, whose likeliest decisions come first, or with a new one, and learns on.

        Args:
            environment: to place.
            seed: of draws, and of the weights of a new policy.
            episodes: of learning; 0: the likeliest decisions, nothing learned (zero-shot). None: as many as the budget
                allows.
        """
        with learning.seeded(seed):
            task = self._task(environment)
            network = self._new(task) if self.network is None else copy.deepcopy(self.network)
            if self.network is not None or episodes == 0:
                self._likeliest(network, task)
            self._learn(network, [task], episodes)

    @abstractmethod
    def _task(self, environment: Environment) -> Task:
        """The environment's graph as the network sees it."""

    @abstractmethod
    def _new(self, task: Task) -> Network:
        """A network with random weights for graphs like this one."""

    @abstractmethod
    def _likeliest(self, network: Network, task: Task) -> None:
        """Measures what the policy would do without chance."""

    @abstractmethod
    def _learn(self, network: Network, tasks: list[Task], episodes: int | None) -> None:
        """Learns on graphs until their budgets are spent, or for so many episodes."""
