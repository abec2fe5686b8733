"""Types of the native core (cpp_ext/bindings*.cpp)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_BYTES: int

Settings = str | Mapping[str, Mapping[str, float]] | None

class Graph:
    def __init__(
        self,
        kind: NDArray[np.uint8],
        input_ptr: NDArray[np.int32],
        input_output: NDArray[np.int32],
        output_ptr: NDArray[np.int32],
        output_bytes: NDArray[np.int64],
        weight_bytes: NDArray[np.int64],
    ) -> None: ...

class Problem:
    def __init__(
        self, graph: Graph, *, same_submodel: NDArray[np.int32], rule: int, **arrays: NDArray[Any]
    ) -> None: ...
    @property
    def kinds(self) -> NDArray[np.int32]: ...
    def canonical_order(self, labels: NDArray[np.int64]) -> NDArray[np.int32]: ...
    def evaluate(
        self, placements: NDArray[np.uint8], threads: int = 1, most_work: int | None = None, breakdown: bool = False
    ) -> dict[str, Any]: ...

def search_settings(given: Settings = None) -> dict[str, dict[str, float]]: ...

class SearchSpace:
    def __init__(self, problem: Problem, coarse: NDArray[np.int32]) -> None: ...
    @property
    def little_memory(self) -> bool: ...
    def refine(
        self,
        placements: NDArray[np.uint8],
        throughput: bool,
        *,
        max_moves: int = 0,
        budget_ms: float = 0.0,
        threads: int = 1,
        seed: int = 0,
        settings: Settings = None,
    ) -> tuple[NDArray[np.uint8], NDArray[np.float64]]: ...
    def search(
        self,
        throughput: bool,
        *,
        max_moves: int = 0,
        budget_ms: float = 0.0,
        seed: int = 0,
        starts: NDArray[np.uint8] | None = None,
        processor_time: bool = False,
        settings: Settings = None,
    ) -> dict[str, Any]: ...
    def search_until_agreed(
        self,
        throughput: bool,
        *,
        max_moves: int,
        seed: int = 0,
        threads: int = 1,
        starts: NDArray[np.uint8] | None = None,
        settings: Settings = None,
    ) -> dict[str, Any]: ...
    def contracted(self, target: int) -> NDArray[np.int32]: ...
    def orders(self, random: int = 0, seed: int = 0) -> NDArray[np.int32]: ...
    def partitions(
        self,
        order: NDArray[np.integer[Any]],
        throughput: bool,
        *,
        cuts: int = 300,
        effort: float = 1.0,
        sequences: int = 4,
        per_sequence: int = 2,
        whole: bool = False,
        filled: float = 1.0,
        in_list_order: bool = False,
    ) -> NDArray[np.uint8]: ...

def split(graph: Graph, device: NDArray[np.uint8], rule: int) -> dict[str, Any]: ...
def merge_groups(nodes: int, a: NDArray[np.int32], b: NDArray[np.int32]) -> NDArray[np.int32]: ...
def colocate_chains(
    graph: Graph, group: NDArray[np.int32], label: NDArray[np.int64], weight: NDArray[np.float64], most: float
) -> NDArray[np.int32]: ...
def structure_features(nodes: int, edge_index: NDArray[np.int64], threads: int = 1) -> dict[str, Any]: ...
def sum_rows(rows: NDArray[np.float32], index: NDArray[np.integer[Any]], size: int) -> NDArray[np.float32]: ...
def parse(
    nodes: int, edge_index: NDArray[np.int64], scores: NDArray[np.float32], levels: int, min_clusters: int
) -> NDArray[np.int32]: ...
def sink_side_of_min_cut(
    nodes: int,
    source: int,
    sink: int,
    start: NDArray[np.integer[Any]],
    end: NDArray[np.integer[Any]],
    capacity: NDArray[np.float64],
) -> NDArray[np.uint8]: ...
def contiguous_partitions(
    kind: NDArray[np.int32],
    throughput: bool,
    *,
    span: NDArray[np.float64] | None = None,
    separable: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]] | None = None,
    links: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
    any_order: bool = True,
    skip: bool = False,
    sequences: int = 1,
    per_sequence: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]]: ...
def split_rule_of(openvino_version: str) -> int: ...

class Legality:
    def __init__(
        self,
        graph: Graph,
        types: Sequence[str],
        variables: Sequence[str],
        movable: NDArray[np.uint8],
        open_lengths: NDArray[np.bool_],
        ranks: NDArray[np.int16],
        shape_ptr: NDArray[np.int32],
        dimensions: NDArray[np.int64],
    ) -> None: ...
    # Attributes are arrays by node; the rules and their reasons stand in cpp_ext/colocation.hpp and
    # docs/reference/facts.md.
    @property
    def constant(self) -> NDArray[np.bool_]: ...  # rests on constants alone and gives the same at each run
    @property
    def replicable(self) -> NDArray[np.bool_]: ...  # has to be where its consumers are: copied where they are several
    @property
    def colocated(self) -> NDArray[np.int32]: ...  # [pairs, 2] must share a device; without replicable producers
    @property
    def hosts(self) -> NDArray[np.int32]: ...
    @property
    def groups(self) -> NDArray[np.int32]: ...  # dense numbers: nodes of a group share a device, otherwise all is legal
    @property
    def same_submodel(self) -> NDArray[np.int32]: ...  # [pairs, 2] must share a submodel, not only a device
    @property
    def experts(self) -> list[tuple[int, int, int, NDArray[np.int32]]]: ...  # tile, scatter, sum, nodes
    def host_devices(self, known: NDArray[np.int32], devices: int) -> NDArray[np.int32]: ...
    def replication(
        self, home: NDArray[np.int32], copyable: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int32], list[tuple[int, int, list[tuple[int, int]]]]]: ...
    def settle(self, device: NDArray[np.int32], devices: int, rule: int) -> NDArray[np.uint8]: ...

def repair(
    graph: Graph,
    group: NDArray[np.int32],
    same_submodel: NDArray[np.int32],
    device: NDArray[np.uint8],
    supported: NDArray[np.bool_],
    rule: int,
) -> NDArray[np.uint8]: ...
