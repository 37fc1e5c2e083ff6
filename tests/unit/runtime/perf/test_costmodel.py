"""The cost model finds the truth that runs were made from, and says what cannot be."""

from __future__ import annotations

import random

import numpy as np
import pytest
from benchmarks.bars.comm_scaling import relative_errors, step_s

from fairlead.perf.projection.cost_model import (
    Allreduce,
    Costs,
    Layout,
    allreduce_s,
    fit,
    fit_overlap,
)

TRUE = Costs(5e-6, 3e-10, 2e-5, 1.08)
LAYOUTS = (
    *(Layout(1, ranks, 2) for ranks in (2, 4, 8, 16, 32)),
    *(Layout(nodes, 2, 2, rate / 8) for nodes in (2, 3, 8) for rate in (1e9, 25e9)),
)
SIZES = (1024, 65536, 1 << 20, 13107200)


def runs(noise: float = 0.0) -> list[Allreduce]:
    source = random.Random(3)
    return [
        Allreduce(layout, size, allreduce_s(TRUE, layout, size) * source.uniform(1 - noise, 1 + noise))
        for layout in LAYOUTS
        for size in SIZES
    ]  # fmt: skip


def test_the_costs_that_runs_were_made_from_are_found() -> None:
    assert fit(runs()) == pytest.approx(TRUE, rel=1e-6)


def test_noise_of_a_tenth_moves_them_little_and_unseen_runs_are_foretold() -> None:
    made = runs(0.1)
    seen = [run for run in made if run.layout.ranks != 8 and run.layout.nodes != 8]
    held = [run for run in made if run not in seen]
    found = fit(seen)
    assert found == pytest.approx(TRUE, rel=0.15)
    assert held and np.median(np.abs(relative_errors(found, held))) < 0.1


def test_of_one_node_nothing_is_said_about_links() -> None:
    found = fit([run for run in runs() if run.layout.nodes == 1])
    assert (found.link_latency, found.link_use) == (0, 0)
    assert found.node_byte == pytest.approx(TRUE.node_byte)


def test_no_cost_is_below_zero() -> None:
    """The larger took less time: without the bound, a byte would give time back."""
    odd = [Allreduce(Layout(1, 2, 2), 1024, 1e-3), Allreduce(Layout(1, 2, 2), 1 << 20, 1e-4)]
    assert min(fit(odd)) >= 0


@pytest.mark.parametrize("overlap", [0.0, 0.4, 1.0])
def test_overlap_is_found(overlap: float) -> None:
    layout, compute = Layout(2, 1, 1, 125e6), [0.05, 0.1, 0.3]
    moving = [allreduce_s(TRUE, layout, size) for size in (1 << 20, 10 << 20, 50 << 20)]
    steps = [
        step_s(TRUE, layout, c, size, overlap)
        for c, size in zip(compute, (1 << 20, 10 << 20, 50 << 20), strict=True)
    ]
    assert fit_overlap(compute, moving, steps) == pytest.approx(overlap)


def test_all_hidden_is_the_longer_of_both_and_crowded_ranks_share_a_core() -> None:
    layout = Layout(2, 1, 1, 125e6)
    moving = allreduce_s(TRUE, layout, 100 << 20)
    assert step_s(TRUE, layout, 0.1, 100 << 20, 1.0) == pytest.approx(max(0.1, moving))
    assert step_s(TRUE, Layout(1, 8, 2), 0.1, 0) == pytest.approx(
        0.4 + allreduce_s(TRUE, Layout(1, 8, 2), 0)
    )


def test_one_rank_has_nothing_to_reduce() -> None:
    assert allreduce_s(TRUE, Layout(), 1 << 30) == 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid layout"):
        Layout(nodes=0)
    with pytest.raises(ValueError, match="overlap"):
        step_s(TRUE, Layout(), 1, 1, 1.5)
    with pytest.raises(ValueError, match="no runs"):
        fit([])
