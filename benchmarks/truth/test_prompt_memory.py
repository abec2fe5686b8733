"""Tests that a process takes as much memory for a prompt as `fit` counts."""

from __future__ import annotations

import sys

import pytest

from benchmarks.truth.prompt_memory import build, counted, peak
from ov_hsdag.kit.decoder import DecoderSize


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks of memory are read from /proc")
@pytest.mark.parametrize("sharing", [False, True])
def test_a_prompt_takes_what_is_counted(sharing: bool) -> None:
    """Outputs lie beside all other tensors; attentions that share their states keep scores."""
    tokens, vocabulary = 2000, 20_000
    model = build(DecoderSize(4, 4, 8, 64, vocabulary, shared=2, base=100), sharing)
    need, output_bytes = counted(model, tokens)
    assert output_bytes == 4 * tokens * vocabulary
    assert need.states + need.activations == pytest.approx(peak(model, tokens), rel=0.15)
