"""More random changes of generated models than tests/test_mutations.py has time for.

Where a state is averaged with the result of a Loop (docs/facts.md), OpenVINO's CPU plugin by itself is no
reference. The examples are drawn from this text and none of them has one.
"""

from __future__ import annotations

import openvino as ov
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from research.zoo.generated import generate
from research.zoo.mutations import check, mutated, runs
from tests.test_mutations import DEVICES, EXAMPLES, some_mutations

pytestmark = pytest.mark.slow


@settings(EXAMPLES, max_examples=40)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 16), before=some_mutations, after=some_mutations)
def test_generated_models(two_cpu_core: ov.Core, seed: int, steps: int, before: list[str], after: list[str]) -> None:
    case, done = mutated(generate(seed, steps), before, seed)
    expected = runs(case, two_cpu_core, "CPU_A")
    assume(done and expected is not None)
    check(case, expected, two_cpu_core, DEVICES, seed, after)
