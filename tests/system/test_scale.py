"""The core's sums between simulated nodes: right, as fast as their rounds say, whatever the scale of the numbers."""

from __future__ import annotations

import math

import pytest
from benchmarks.simulation import ARIES, FAT_TREE, MACHINES, SLINGSHOT, Job, flat, simulate

ALGORITHMS = ("doubling", "halving", "ring", "groups", "auto")


@pytest.mark.parametrize("nodes", [2, 7, 16, pytest.param(96, marks=pytest.mark.full)])
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_sums_of_simulated_nodes_are_right(machine, nodes: int) -> None:
    jobs = [Job(name, size, pieces) for name in ALGORITHMS for size, pieces in ((40, 1), (1e5, 5))]
    answers = simulate(machine, nodes, jobs)
    assert [answer["wrong"] for answer in answers] == [0] * len(jobs)
    assert all(answer["seconds"] > 0 for answer in answers)


def test_sums_take_as_long_as_their_rounds_and_bytes() -> None:
    """On a network without contention: latency and bandwidth, nothing else but the adding at 8 GB/s."""
    nodes, size, latency, bandwidth = 16, 16e6, 5e-6, 1e9
    machine = flat(bandwidth, latency, nodes)
    small, large, ring = simulate(
        machine, nodes, [Job("doubling", 8), Job("halving", size), Job("ring", size)]
    )
    part = (nodes - 1) / nodes * size
    assert small["seconds"] == pytest.approx(math.log2(nodes) * latency, rel=0.02)
    moved = 2 * part / bandwidth + part / 8e9
    assert large["seconds"] == pytest.approx(moved + 2 * math.log2(nodes) * latency, rel=0.02)
    assert ring["seconds"] == pytest.approx(moved + 2 * (nodes - 1) * latency, rel=0.02)


def test_fewer_numbers_over_slower_links_take_as_long() -> None:
    jobs = [Job("halving", 4e6, 4), Job("ring", 4e6, 2)]
    for machine in (SLINGSHOT, FAT_TREE):
        whole, scaled = (simulate(machine, 32, jobs, scale) for scale in (1, 20))
        for one, other in zip(whole, scaled, strict=True):
            assert other["seconds"] == pytest.approx(one["seconds"], rel=0.01)


@pytest.mark.parametrize("size", [8, 32768, 4e6])
def test_chosen_algorithm_is_nearly_the_best(size: float) -> None:
    jobs = [Job(name, size) for name in ("auto", "doubling", "halving", "ring")]
    chosen, *others = (answer["seconds"] for answer in simulate(ARIES, 24, jobs))
    assert chosen <= 1.1 * min(others)


def test_sum_on_six_nodes_of_an_aries_is_within_twice_of_what_was_published() -> None:
    """osu_allreduce of 8 B on 6 nodes, by Cray's MPI: 9.30 us (sitecfg/piz-daint.toml)."""
    (answer,) = simulate(ARIES, 6, [Job("doubling", 8)])
    assert 9.30e-6 / 2 < answer["seconds"] < 9.30e-6 * 2


def test_delayed_step_hides_what_a_synchronous_one_waits_for() -> None:
    steps = [
        Job("halving", 20e6, 4, steps=6, compute_s=0.02, deviation=0.05, delayed=delayed)
        for delayed in (False, True)
    ]
    synchronous, delayed = (answer["seconds"] for answer in simulate(FAT_TREE, 16, steps))
    assert 0.02 < delayed < synchronous


@pytest.mark.full
def test_4096_simulated_nodes_sum_right() -> None:
    for machine in MACHINES.values():
        (answer,) = simulate(machine, 4096, [Job("halving", 1e6)], 50, limit_s=1200)
        assert answer["wrong"] == 0 and answer["messages"] == 24
