"""Tests of runs in processes: their order, and what they share."""

from __future__ import annotations

import itertools
import os
from functools import cache, partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from benchmarks.common.bound_worker import BoundWorker, submodel_devices
from benchmarks.common.workers import in_processes
from benchmarks.field.unseen import DEVICES
from ov_hsdag.devices import virtual
from ov_hsdag.measuring.process import PATIENCE, Candidate, WorkerPool
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.problem.pricing import build_problem
from research.zoo.catalog import ZOO


class Bound:
    """An object that runs share; it is equal to no other object."""


@cache
def made_once(bound: Bound) -> list[int]:
    return []


def count(bound: Bound, task: int) -> tuple[int, int]:
    """Returns the task, and how many tasks this process has had with the same object."""
    seen = made_once(bound)
    seen.append(task)
    return task, len(seen)


def test_runs_come_in_their_order_and_share_what_is_bound() -> None:
    assert list(in_processes(partial(count, Bound()), range(5), processes=1)) == [(task, task + 1) for task in range(5)]
    assert list(in_processes(partial(count, Bound()), [])) == []


def test_devices_of_submodels_are_known_without_a_runtime_model() -> None:
    profiled = Mock(get_runtime_model=Mock(side_effect=RuntimeError("a submodel has none")))
    names = ("subgraph0: a", "subgraph1: b", "subgraph1: b_reordered")
    profiled.create_infer_request().profiling_info = [Mock(node_name=name) for name in names]
    assert submodel_devices(profiled, [], {"a": "CPU_B", "b": "CPU_A"}) == ["CPU_B", "CPU_A"]


TWO_CORES = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="binds threads to two cores"
)


@TWO_CORES
def test_bound_workers_have_no_threads_of_tbb(declared: None) -> None:
    """Compiling transposes the constant on as many cores as TBB has counted."""
    x = ops.parameter([512, 4, 256], np.float32)
    weights = ops.transpose(np.ones((4, 256, 512), np.float32), ops.constant(np.array([2, 0, 1])))
    model = ov.Model([ops.result(ops.add(x, weights))], [x])
    with WorkerPool(model, timed_inputs(model), "throughput", BoundWorker) as pool:
        assert [one.shape for one in pool.start().compile(Candidate("CPU_A"), PATIENCE)] == [(512, 4, 256)]


@TWO_CORES
def test_a_bound_worker_compiles_each_candidate_in_a_process_of_its_own(declared: None) -> None:
    """Its threads have a core for each device, also where a device has several submodels."""
    x = ops.parameter([4, 4], np.float32)
    names = ("first", "second", "third")
    value = x
    for name in names:
        value = ops.exp(value)
        value.set_friendly_name(name)
    model = ov.Model([ops.result(value)], [x])
    affinity = {node.get_friendly_name(): "CPU_A" for node in model.get_ops()} | {"second": "CPU_B"}
    cores = sorted(os.sched_getaffinity(0))
    with WorkerPool(model, timed_inputs(model), "throughput", BoundWorker) as pool:
        worker, processes = pool.start(), []
        for candidate in (Candidate.placed(DEVICES, affinity), Candidate("HETERO:CPU_A,CPU_B")):
            worker.compile(candidate, PATIENCE)
            processes.append(worker._process.pid)
            threads = [int(path.name) for path in Path(f"/proc/{processes[-1]}/task").iterdir()]
            bound = [min(on) for one in sorted(threads) if len(on := os.sched_getaffinity(one)) == 1]
            on_cores = [cores[1], cores[0]] if candidate.affinity else [cores[0]]
            assert [core for core, _ in itertools.groupby(bound)][-len(on_cores) :] == on_cores
            assert worker.submodels == (3 if candidate.affinity else 1)
        assert len(set(processes)) == 2


@pytest.mark.slow
def test_submodels_are_in_the_order_in_which_hetero_compiles_them(declared: None) -> None:
    """Random parts of a model with branches: where the order is known, it is that of the profile."""
    core, told, random = virtual.new_core(), 0, np.random.default_rng(0)
    problem = build_problem(model := ZOO["squeezenet"].build(), DEVICES, core=core)
    step = timed_inputs(model)[0].steps[0]
    for share in (0.02, 0.05, 0.1, 0.5) * 4:
        placement = problem.repair((random.random(problem.group_count) < share).astype(np.uint8))
        devices = problem.submodels_in_order(placement).tolist()
        affinity = problem.affinity(placement)
        set_affinities(model, affinity)
        profiled = core.compile_model(model, DEVICES.hetero, {"PERF_COUNT": True})
        order = submodel_devices(profiled, step, affinity)
        told += len(devices) > 2
        assert not devices or [DEVICES.names[one] for one in devices] == order
    assert told >= 8
