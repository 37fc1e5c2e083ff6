"""Processors' clocks as evidence: what recorded machines say, what it comes to for a host, and when it is a reason."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest
from tests.support.validated import demo

from fairlead.base.serde import from_json
from fairlead.perf.draw.validation_page import render
from fairlead.perf.judge import diagnosis
from fairlead.perf.measure import processors
from fairlead.perf.measure.kernels import (
    KERNELS,
    Kernels,
    KernelTimes,
    Sample,
    find_compute,
)
from fairlead.perf.measure.processors import Reading, clocks, core_now, read
from fairlead.perf.records.validation import Clock, Evidence, Measurement, Way, What

RECORDED = Path(__file__).parents[3] / "recorded" / "processors"
TRAIN = Measurement(What.TRAIN, Way.NATIVE, (), 64, 8, None, "hepcnn")


def laid(name: str, folder: Path) -> Path:
    """A recorded machine's files as a root."""
    for path, text in json.loads((RECORDED / f"{name}.json").read_text())["files"].items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("machine", "core", "reading"),
    [
        ("intel-pstate", 0, Reading(2893.444, 2300.0, 4)),
        ("intel-pstate", 1, Reading(1200.017, 2300.0, 315)),
        ("acpi-cpufreq", 0, Reading(3276.112, 2250.0, None)),
        ("amd-pstate", 0, Reading(2994.0, 2400.0, None)),
        ("no-cpufreq", 1, Reading(2499.992, None, None)),
        ("vm", 0, Reading()),  # its `cpu MHz` is a constant
        ("vm", 99, Reading()),
    ],
)
def test_recorded_machine_says_what_it_measures_and_no_more(
    machine: str, core: int, reading: Reading, tmp_path: Path
) -> None:
    found = read(core, laid(machine, tmp_path))
    assert found.throttled == reading.throttled
    for seen, wanted in ((found.mhz, reading.mhz), (found.nominal_mhz, reading.nominal_mhz)):
        assert seen == (None if wanted is None else pytest.approx(wanted))


@pytest.mark.parametrize("text", ["0", "", "<unknown>", "-1", "nan"])
def test_what_is_no_clock_is_not_taken_for_one(text: str, tmp_path: Path) -> None:
    root = laid("intel-pstate", tmp_path)
    (root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").write_text(text)
    assert read(0, root).mhz is None


def test_this_machine_is_read_with_the_kernels() -> None:
    assert core_now() in range(4096)
    sample = Kernels().sample("arithmetic", 20)
    assert sample.mhz is None or 100 < sample.mhz < 20_000
    assert sample.hot is None or sample.hot >= 0
    there = Path(f"/sys/devices/system/cpu/cpu{core_now()}/cpufreq/scaling_cur_freq").exists()
    assert (sample.mhz is not None) or not there


def worked(rank: int, wall: float, mhz: float | None = None, hot: int | None = None) -> KernelTimes:
    samples = [Sample(wall, wall, mhz=mhz, nominal_mhz=mhz and 2300.0, hot=hot)] * 5
    return KernelTimes(rank, f"node{rank // 2}", dict.fromkeys(KERNELS, samples))


def test_host_has_the_clock_of_its_slowest_rank() -> None:
    every = [worked(r, 0.1, 2900.0, 0) for r in range(6)] + [worked(6, 0.1, 2880.0, 0)]
    every += [worked(7, 0.2, 1200.0, 3)]
    hosts = ("node0", "node1", "node2", "node3", "gone")
    found = clocks(every, hosts)
    assert [c.host for c in found] == list(hosts[:4])
    assert found[0] == Clock("node0", 2900.0, 2300.0, 2900.0, 0, 1.0, 1)
    assert (found[3].seen_mhz, found[3].times, found[3].from_nodes) == (1200.0, 2.0, 4)
    assert found[3].throttled == 30  # of ten samples
    back = [
        from_json(KernelTimes, json.loads(json.dumps(dataclasses.asdict(one)))) for one in every
    ]
    assert clocks(back, hosts) == found


def test_machine_that_reveals_nothing_gives_no_evidence() -> None:
    assert clocks([worked(r, 0.1 + r) for r in range(4)], ("node0", "node1")) == ()


def test_one_rank_alone_has_no_like() -> None:
    (found,) = clocks([worked(0, 0.1, 1200.0, 0)], ("node0",))
    assert found.usual_mhz is None and not diagnosis.held_back(found)


@pytest.mark.parametrize(
    ("clock", "evidence"),
    [
        (Clock("n", 2900.0, 2300.0, 2900.0, 0, 1.0), False),
        (Clock("n", 1200.0, 2300.0, 2900.0, 0, 1.02), False),  # saves power, and is as fast
        (Clock("n", 2880.0, 2300.0, 2900.0, 0, 1.6), False),  # slow, and not for its clock
        (Clock("n", None, None, None, 0, 1.6), False),
        (Clock("n", 1200.0, None, 2900.0, None, 1.6), True),
        (Clock("n", 2900.0, 2300.0, 2900.0, 2, 1.0), True),  # its own counter says so
        (Clock("n", throttled=1), True),
    ],
)
def test_low_clock_is_evidence_only_with_slow_arithmetic_or_a_counter(
    clock: Clock, evidence: bool
) -> None:
    assert bool(diagnosis.held_back(clock)) is evidence
    assert (diagnosis.throttled(TRAIN, Evidence(clocks=(clock,))) is not None) is evidence


def test_reason_names_the_worst_host_that_takes_part_with_its_numbers() -> None:
    bad = Clock("n7", 1200.0, 2300.0, 2900.0, 12, 2.4, 8)
    seen = Evidence(clocks=(Clock("n1", 2900.0, 2300.0, 2900.0, 1, 1.0), bad))
    found = diagnosis.throttled(TRAIN, seen)
    assert found and found.text == (
        "the processor of n7 is held back: it was slowed down for heat 12 times, and it ran at 1200 (2300 nominal)"
        " MHz, 2900 is usual, and its arithmetic took 2.40 times as long as that of its like"
    )
    few = diagnosis.throttled(dataclasses.replace(TRAIN, nodes=2), seen)
    assert few and few.text.startswith(
        "the processor of n1 is held back: it was slowed down for heat 1 time"
    )
    assert diagnosis.throttled(Measurement(What.CHECKPOINT, Way.NATIVE, (), nodes=8), seen) is None


def test_slow_rank_is_named_with_its_clock_and_heat() -> None:
    every = [worked(r, 0.1, 2900.0, 0) for r in range(7)] + [worked(7, 0.25, 1200.0, 2)]
    (culprit,) = find_compute(every).culprits
    assert (
        "slowed down for heat 20 times; its clock was 1200 MHz, 2900 is usual" in culprit.evidence
    )
    assert "cpupower frequency-info" in culprit.remedy
    (silent,) = find_compute([worked(r, 0.25 if r == 3 else 0.1) for r in range(4)]).culprits
    assert "MHz" not in silent.evidence and "heat" not in silent.evidence


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((), "cannot tell: no clock and no counter of heat could be read"),
        ((Clock("n0", 2893.4, 2300.0, throttled=0), Clock("n1", 2910.0, 2300.0)), "2,893 to 2,910 MHz while ranks computed, 2,300 nominal; none was slowed down for heat"),
        (tuple(Clock(f"n{i}", throttled=i) for i in range(6)), "slowed down for heat: n1 1 time, n2 2 times, n3 3 times and 2 more"),
    ],
)  # fmt: skip
def test_page_says_what_processors_report(found: tuple[Clock, ...], words: str) -> None:
    made = demo(bad_node=None, repeats=6, steps=3)
    shown = dataclasses.replace(made, evidence=dataclasses.replace(made.evidence, clocks=found))
    assert f"<td>{words}</td>" in render(shown)


@pytest.mark.parametrize(
    ("spent", "expected"),
    [
        ({0: 100}, 1.0),  # a core kept busy for the whole second
        ({0: 50, 1: 25}, 0.75),
        ({}, 0.0),
        ({99: 100}, 0.0),  # a core that this process may not use
    ],
)
def test_others_are_what_keeps_our_cores_busy(
    spent: dict[int, int], expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(os, "times", lambda: (5.0, 5.0, 3.0, 3.0, 9.0))
    moments = iter((10.0, 11.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))

    def write(extra: dict[int, int]) -> None:
        rows = (
            f"cpu{n} {7 + extra.get(n, 0) * ticks // 100} 0 3 900 40 0 1 0 0 0" for n in (0, 1, 99)
        )
        (tmp_path / "proc").mkdir(exist_ok=True)
        (tmp_path / "proc/stat").write_text(
            "cpu 1 2 3 4 5 6 7 8 9 0\n" + "\n".join(rows) + "\nctxt 9\n"
        )

    write({})
    monkeypatch.setattr(time, "sleep", lambda seconds: write(spent))
    assert processors.others(1.0, tmp_path) == pytest.approx(expected)


def test_others_are_unknown_without_proc(tmp_path: Path) -> None:
    assert processors.others(0.0, tmp_path) is None
    found = processors.others(0.05)
    assert found is not None and found >= 0
