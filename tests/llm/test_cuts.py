"""Decoders as optimum-intel exports them, cut between layers, on real HETERO."""

from __future__ import annotations

import openvino as ov

from tests.llm.cuts import SETS_OF_CUTS, boundaries, growth, random_cuts, random_placements
from tests.llm.families import LAYERS

# Of a mask and a position bias: a number for each of four heads. A state would be 128 bytes at least.
MOST_GROWTH = 4 * 8


def test_every_boundary_between_layers_can_be_cut(core: ov.Core, exported: ov.Model) -> None:
    found = boundaries(core, exported)
    assert len(found) == LAYERS - 1
    assert all(one.feasible and one.predicted == one.submodels == 2 for one in found)


def test_what_crosses_does_not_grow_with_the_context(core: ov.Core, exported: ov.Model) -> None:
    assert growth(core, exported) <= MOST_GROWTH


def test_any_cuts_compute_what_one_device_does(core: ov.Core, exported: ov.Model) -> None:
    found = random_cuts(core, exported)
    assert len(found) == SETS_OF_CUTS
    assert all(one.good and one.difference <= 1e-3 for one in found), found


def test_cuts_within_layers_compute_what_one_device_does(core: ov.Core, exported: ov.Model) -> None:
    found = random_placements(core, exported)
    assert len(found) > 3
    assert all(same and difference <= 1e-3 for same, difference in found), found
