"""Files of all kinds, damaged at random: each loads or is refused in one clear line. `make fuzz` does more of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutation import mutated
from tests.fuzz.readers import READERS, attempt


@pytest.mark.parametrize("kind", READERS)
def test_good_files_are_read(kind: str) -> None:
    for content in READERS[kind].seeds():
        assert attempt(READERS[kind], content)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1))
def test_damaged_files_are_read_or_refused_in_one_line(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    attempt(READERS[kind], mutated(draw.choice(READERS[kind].seeds()), draw))
