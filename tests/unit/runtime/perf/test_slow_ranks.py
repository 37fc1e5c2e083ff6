"""Whose processor is slow: the judgement over samples, its causes, and who measures at the same time."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.serde import from_json, to_json
from fairlead.perf.measure.kernels import (
    KERNELS,
    Kernels,
    KernelTimes,
    Sample,
    find_compute,
    throttled_s,
)
from fairlead.perf.measure.ranks import stragglers as pairs
from fairlead.perf.measure.straggler_search import Answer, Kind, Outcome, Straggler, conclude


def worked(rank: int, *walls: float, cpu: float = 0.1, **more: float) -> KernelTimes:
    rows = [Sample(wall, min(cpu, wall), **more) for wall in walls]
    return KernelTimes(rank, f"node{rank}", dict.fromkeys(KERNELS, rows))


def crowd(count: int) -> list[KernelTimes]:
    """Ranks whose samples were disturbed now and then."""
    return [worked(rank, 0.10, 0.11, 0.30 if rank % 3 else 0.12) for rank in range(count)]


def found(*every: KernelTimes) -> Outcome:
    return find_compute(sorted(every, key=lambda one: one.rank))


def test_ranks_that_are_disturbed_now_and_then_are_not_slow() -> None:
    outcome = found(*crowd(8))
    assert outcome.answer is Answer.NONE and outcome.rounds == 1


@pytest.mark.parametrize(
    ("slow", "evidence", "remedy"),
    [
        (worked(8, 0.5, 0.6, 0.5, throttled_s=0.4, waited_s=0.4), "throttled for 2.40 of 3.20 s", "CPU quota"),
        (worked(8, 0.5, 0.6, 0.5, throttled_s=0.0, waited_s=0.4), "waited 2.40 s for a core", "what else runs"),
        (worked(8, 0.5, 0.6, 0.5), "it had a core for 0.60 of 3.20 s;", "what else runs"),
        (worked(8, 0.5, 0.6, 0.5, cpu=1.0), "it had a core all the time", "clock, temperature"),
    ],
)  # fmt: skip
def test_slow_rank_is_named_with_its_cause(slow: KernelTimes, evidence: str, remedy: str) -> None:
    outcome = found(*crowd(8), slow)
    assert outcome.answer is Answer.ONE
    (culprit,) = outcome.culprits
    assert (culprit.kind, culprit.names, culprit.ranks) == (Kind.COMPUTE, ("node8",), (8,))
    assert evidence in f"{culprit.evidence};" and remedy in culprit.remedy
    assert culprit.times_slower == pytest.approx(0.5 / 0.11)


def test_rank_that_is_slow_at_times_leaves_it_open() -> None:
    outcome = found(*crowd(8), worked(8, 0.1, 0.5, 0.5))
    assert outcome.answer is Answer.UNKNOWN and outcome.culprits == ()
    assert outcome.unsure[0].startswith("rank 8 on node8 is slow at times")


def test_two_slow_ranks_are_several_and_one_rank_alone_cannot_be_judged() -> None:
    outcome = found(*crowd(6), worked(6, 0.5, 0.5, 0.5), worked(7, 0.9, 0.9, 0.9))
    assert outcome.answer is Answer.SEVERAL and [c.ranks for c in outcome.culprits] == [(6,), (7,)]
    assert found(*crowd(1)).answer is Answer.UNKNOWN


def test_kernels_take_time_and_say_what_of_it_they_had() -> None:
    kernels = Kernels()
    for name in KERNELS:
        assert kernels.seconds_of_one(name) > 0
        sample = kernels.sample(name, 3)
        assert 0 < sample.cpu_s <= sample.wall_s * 1.05
    value = json.loads(json.dumps(to_json(worked(3, 0.1, 0.2))))
    assert from_json(KernelTimes, value).samples == {
        k: tuple(worked(3, 0.1, 0.2).samples[k]) for k in KERNELS
    }


@pytest.mark.parametrize(
    ("own", "file", "words", "seconds"),
    [
        ("0::/job/a", "job/a/cpu.stat", "usage_usec 9\nthrottled_usec 2500000", 2.5),
        ("1:cpu,cpuacct:/job", "cpu,cpuacct/job/cpu.stat", "nr_periods 1\nthrottled_time 500000000", 0.5),
        ("1:cpu:/job\n0::/", "cpu/job/cpu.stat", "throttled_time 0", 0.0),
        ("0::/", "cpu.stat", "usage_usec 9", None),
        ("0::/gone", "other/cpu.stat", "throttled_usec 5", None),
    ],
)  # fmt: skip
def test_throttled_time_of_either_cgroup_version_is_read(
    own: str, file: str, words: str, seconds: float | None, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{own}\n")
    place = tmp_path / "sys/fs/cgroup" / file
    place.parent.mkdir(parents=True)
    place.write_text(words + "\n")
    assert throttled_s(tmp_path) == seconds


shares = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=5)


def machines(shares: Sequence[tuple[int, int]]) -> list[tuple[list[int], int]]:
    ranks = iter(range(sum(count for count, _ in shares)))
    return [([next(ranks) for _ in range(count)], cores) for count, cores in shares]


@given(shares)
def test_turns_have_every_rank_once_and_no_more_than_cores(shared: list[tuple[int, int]]) -> None:
    found = pairs.turns(machines(shared))
    assert sorted(sum(found, [])) == list(range(sum(count for count, _ in shared)))  # noqa: RUF017
    for turn in found:
        for ranks, cores in machines(shared):
            assert len(set(turn) & set(ranks)) <= cores


@given(shares, st.data())
def test_groups_at_once_need_no_more_than_cores(
    shared: list[tuple[int, int]], data: st.DataObject
) -> None:
    ranks = data.draw(st.permutations([r for own, _ in machines(shared) for r in own]))
    groups = [ranks[i : i + 2] for i in range(0, len(ranks) - 1, 2)]
    batches = pairs.at_once(groups, machines(shared))
    assert sorted(n for batch in batches for n in batch) == list(range(len(groups)))
    for batch in batches:
        for own, cores in machines(shared):
            need = [n for n in (len(set(groups[g]) & set(own)) for g in batch) if n]
            assert len(need) <= 1 or sum(need) <= cores


def test_together_blames_a_slow_processor_for_its_link_and_names_each_once() -> None:
    compute = Straggler(Kind.COMPUTE, ("a",), 5, "slow", "do", (0,))
    link = Straggler(Kind.LINK, ("a",), 3, "slow", "do", (0,))
    pair, worse = (Straggler(Kind.PAIR, ("b", "c"), t, "slow", "do", (1, 2)) for t in (3, 7))
    found = {
        "compute": conclude([compute], (), "", 1, 0.1),
        "links of 8 B": conclude([link, pair], (), "", 9, 0.1),
        "links of 9 B": conclude([worse], (), "", 9, 0.1),
    }
    outcome = pairs.together(found)
    assert outcome.answer is Answer.SEVERAL and outcome.rounds == 19
    first, second = outcome.culprits
    assert first.names == ("a",) and "its link is slow as well" in first.evidence
    assert second == worse
    quiet = pairs.together({"compute": conclude((), (), "all well", 1, 0.1)})
    assert (quiet.answer, quiet.reason) == (Answer.NONE, "all well")
    open_ = pairs.together({"compute": conclude((), ("x is unsteady",), "", 1, 0.1)})
    assert open_.answer is Answer.UNKNOWN and "compute: x is unsteady" in open_.reason


def test_settings_come_back_from_their_json() -> None:
    settings = pairs.Settings(Path("out"), bytes=(8, 1 << 20))
    assert from_json(pairs.Settings, json.loads(json.dumps(to_json(settings)))) == settings
    assert from_json(pairs.Settings, {"out": os.devnull}) == pairs.Settings(Path(os.devnull))


def on_host(rank: int, host: str, wall: float) -> KernelTimes:
    return KernelTimes(rank, host, dict.fromkeys(KERNELS, (Sample(wall, 0.1),) * 3))


def test_host_all_of_whose_ranks_are_slow_is_one_culprit() -> None:
    others = [on_host(rank, f"node{rank // 4}", 0.1) for rank in range(12)]
    slow = [on_host(12 + n, "node3", 0.5 + n / 10) for n in range(4)]
    (culprit,) = find_compute([*others, *slow]).culprits
    assert culprit.names == ("node3",) and culprit.ranks == (12, 13, 14, 15)
    assert culprit.evidence.startswith("all 4 ranks of node3 are slow, the worst rank 15: ")
    assert culprit.times_slower == pytest.approx(6.5)
    some = find_compute([*others, *slow[:3], on_host(15, "node3", 0.1)]).culprits
    assert [c.ranks for c in some] == [(12,), (13,), (14,)]


def test_ranks_that_waver_on_a_slow_host_are_a_part_of_it() -> None:
    others = [on_host(rank, f"node{rank // 4}", 0.1) for rank in range(12)]
    slow = [on_host(12 + n, "node3", 0.5) for n in range(2)]
    walls = [Sample(wall, 0.1) for wall in (0.1, 0.5, 0.5)]
    at_times = [KernelTimes(14 + n, "node3", dict.fromkeys(KERNELS, walls)) for n in range(2)]
    outcome = find_compute([*others, *slow, *at_times])
    (culprit,) = outcome.culprits
    assert culprit.ranks == (12, 13) and outcome.unsure == ()
    assert culprit.evidence.startswith("2 of 4 ranks of node3 are slow and the others at times, ")


def test_ranks_of_the_only_host_are_named_each() -> None:
    ranks = [on_host(0, "node0", 0.1), on_host(1, "node0", 0.1), on_host(2, "node0", 0.5)]
    assert [c.ranks for c in find_compute(ranks).culprits] == [(2,)]
