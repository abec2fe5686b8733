"""Random changes of random and real models: all place, compile and compute the same."""

from __future__ import annotations

from functools import cache

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.placement import Placement
from research.zoo.catalog import ZOO
from research.zoo.generated import Case, generate
from research.zoo.mutations import MUTATIONS, Wrong, check, mutated, runs

DEVICES = DeviceSet(("CPU_A", "CPU_B"))
EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)

some_mutations = st.lists(st.sampled_from(list(MUTATIONS)), min_size=1, max_size=3)


@pytest.mark.slow
@settings(EXAMPLES, max_examples=40)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 16), before=some_mutations, after=some_mutations)
def test_generated_models(two_cpu_core: ov.Core, seed: int, steps: int, before: list[str], after: list[str]) -> None:
    """Where a state is averaged with the result of a Loop (docs/reference/facts.md), the CPU plugin by itself is no
    reference.

    The examples are drawn from this text and none of them has one.
    """
    case, done = mutated(generate(seed, steps), before, seed)
    expected = runs(case, two_cpu_core, "CPU_A")
    assume(done and expected is not None)
    check(case, expected, two_cpu_core, DEVICES, seed, after)


@cache
def real(name: str) -> Case:
    model = ZOO[name].build()
    return Case(model, [[arrays[port.any_name] for port in model.inputs] for arrays in ZOO[name].inputs(0)])


@pytest.mark.parametrize("name", [pytest.param("bert-dynamic", marks=pytest.mark.slow), "lstm-stateful", "looped-cell"])
@settings(EXAMPLES, max_examples=4)
@given(seed=st.integers(0, 10**6), before=some_mutations, after=some_mutations)
def test_real_models(two_cpu_core: ov.Core, name: str, seed: int, before: list[str], after: list[str]) -> None:
    case, done = mutated(real(name), before, seed)
    expected = runs(case, two_cpu_core, "CPU_A")
    assume(done and expected is not None)
    check(case, expected, two_cpu_core, DEVICES, seed, after)


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_every_mutation_changes_models_that_still_run(two_cpu_core: ov.Core, name: str) -> None:
    for seed in range(12):
        case, done = mutated(generate(seed, 8), [name], seed)
        if done and runs(case, two_cpu_core, "CPU_A") is not None:
            return
    pytest.fail("none of twelve models")


def test_generated_models_have_all_that_makes_placing_hard() -> None:
    models = [generate(seed, 16).model for seed in range(40)]
    types = {node.get_type_name() for model in models for node in model.get_ops()}
    wanted = {"ShapeOf", "Range", "Broadcast", "Slice", "ReadValue", "If", "Loop", "TensorIterator", "LSTMSequence"}
    assert wanted | {"VariadicSplit", "Split", "TopK", "NonZero"} <= types
    assert any(model.is_dynamic() for model in models)
    assert any(
        len(node.output(0).get_target_inputs()) > 1
        for model in models
        for node in model.get_ops()
        if node.get_type_name() == "Constant"
    )


def test_what_is_wrong_is_found(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    case = generate(3, 8)

    def lost(self: Placement, model: ov.Model) -> None:
        for node in model.get_ordered_ops():
            node.get_rt_info()["affinity"] = ("CPU_A", "CPU_B")[int(np.random.default_rng(0).integers(0, 2))]
        for node in model.get_ordered_ops()[:1]:
            del node.get_rt_info()["affinity"]

    monkeypatch.setattr(Placement, "apply", lost)
    # Neither the hook nor the library for C++, which another test may have loaded, completes the affinities.
    monkeypatch.setenv("OV_HSDAG_DISABLE", "1")
    expected = runs(case, two_cpu_core, "CPU_A")
    assert expected is not None
    with pytest.raises(Wrong, match="not assigned to any device"):
        check(case, expected, two_cpu_core, DEVICES, 0, [])
