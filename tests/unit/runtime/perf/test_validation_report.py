"""A validation's page, CSV and pictures: whole, self-contained, small, and true to the numbers."""

from __future__ import annotations

import csv
import dataclasses
import io
import re

import numpy as np
import pytest
from tests.support.validated import HOSTS, demo, kept, times, with_verdicts
from tests.unit.runtime.perf.test_report import VOID, parsed

from fairlead.perf.draw import charts, figures
from fairlead.perf.draw.tables import COLUMNS, as_csv, slower, tables
from fairlead.perf.draw.validation_page import render, write_validation
from fairlead.perf.draw.wording import amount, between, label, milliseconds, model_title, size
from fairlead.perf.judge.assess import proof_record
from fairlead.perf.records import history
from fairlead.perf.records.validation import (
    Culprit,
    Evidence,
    Machine,
    Measurement,
    State,
    Validation,
    Way,
    What,
)
from fairlead.perf.stats import Summary, summarize
from fairlead.proof.verdict import Proof, RankProof

VOID |= {"col", "link", "circle"}
FULL = demo(references=kept(), steps=1000)
PAGE = render(FULL)


def test_page_of_64_ranks_and_1000_steps_is_whole_self_contained_and_small() -> None:
    found = parsed(PAGE)
    assert found.loads.pop(0) == "data:,"
    assert found.loads and all(value.startswith("#") for value in found.loads)
    assert {f'id="{value[1:]}"' for value in found.loads} <= set(re.findall(r'id="[a-z]+"', PAGE))
    assert not re.search(r"https?://|url\(|@import|<script|<img|<iframe", PAGE)
    assert len(PAGE.encode()) < 300_000
    assert found.seen.count("svg") == 6 + 1 + len(FULL.measurements)


def test_page_says_the_verdict_first_then_all_sections() -> None:
    body = PAGE[PAGE.index("<body") :]
    titles = re.findall(r"<h[12]>([^<]+)</h[12]>", body)
    assert titles[0].replace("\u00a0", " ") == (
        "Node nid001006 is 1.5 × as slow as its like:"
        " 2 of 77 lines are slow, the worst 1.5 × slower than it should be."
    )
    assert titles[1:] == [
        "Speed of ResNet-50 v2",
        "Efficiency of ResNet-50 v2",
        "Allreduce, 64 ranks on 8 nodes",
        "Pingpong, 2 ranks on 2 nodes",
        "Efficiency of ResNet-50 v2",
        "Where a step's time goes",
        "Ranks × steps",
        "All lines",
        "Proof: what each rank saw",
        "Environment",
        "Digests",
        "Repeat it",
    ]
    assert "Speed of ResNet-50 v2 against ranks: 59 % of ideal on 64 ranks" in body
    assert "most likely because node nid001006" in body and "leave it out" in body
    assert body.count("3f9a" * 16) == 1 and "fairlead report --compare" in body


def test_page_same_validation_gives_same_bytes() -> None:
    assert render(FULL) == PAGE


def test_page_has_no_colour_but_the_themes() -> None:
    outside = re.sub(r"<style>.*?</style>", "", PAGE, flags=re.DOTALL)
    assert not re.search(r"(fill|stroke|color|background)\s*[:=]|#[0-9a-f]{3,6}\b", outside)
    style = PAGE[PAGE.index("<style>") : PAGE.index("</style>")]
    light, dark, paper = (
        set(re.findall(r"(--[\w]+):", block)) - {"--font", "--mono"}
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    )
    assert light == dark == paper
    assert set(re.findall(r"var\((--[\w]+)\)", style)) - {"--font", "--mono", "--tall"} <= light


def test_page_hostile_names_are_escaped() -> None:
    bad = "<script>alert(1)</script>"
    m = dataclasses.replace(FULL.measurements[0], subject=bad, launcher=bad)
    hostile = dataclasses.replace(
        FULL,
        command=bad,
        measurements=(m, *FULL.measurements[1:]),
        machine=Machine(bad, (bad,), 2, {bad: bad, f"{bad} digest": bad}),
        steps=tuple(dataclasses.replace(s, host=bad) for s in FULL.steps[:9]),
        evidence=Evidence(culprits=(Culprit(bad, bad, 2.0),)),
    )
    page = render(with_verdicts(hostile))
    parsed(page)
    assert bad not in page and "&lt;script&gt;" in page


def bare(*measurements: Measurement) -> Validation:
    made = Validation("one", "2026-01-02T03:04:05+00:00", 3.0, "fairlead validate", Machine("s", ("h",), 1), measurements, ())  # fmt: skip
    return with_verdicts(made)


@pytest.mark.parametrize(
    "validation",
    [
        bare(),
        bare(Measurement(What.START, Way.CONTAINER, (), 1)),
        bare(Measurement(What.START, Way.CONTAINER, (1.0,), 1)),
        bare(Measurement(What.TRAIN, Way.IMAGE, (5.0,) * 6, 1, 1, None, "m")),
        bare(
            *(
                Measurement(What.TRAIN, w, (5.0 * r,) * 6, r, 1, None, "m")
                for w in Way
                for r in (2, 3)
            )
        ),
        bare(*(Measurement(What.ALLREDUCE, Way.IMAGE, (1e-5,) * 4, 2, 1, 10**k) for k in range(4))),
        bare(*(Measurement(What.BROADCAST, Way.NATIVE, (1e-9, 5.0), 2, 1, 8**k) for k in range(4))),
    ],
    ids=["nothing", "no samples", "one sample", "one rank", "no base", "own mpi", "two samples"],
)
def test_page_of_little_is_still_a_page(validation: Validation) -> None:
    parsed(render(validation))
    assert as_csv(validation).count("\n") == 1 + len(validation.measurements)


def test_page_of_a_culprit_without_slow_lines_warns() -> None:
    quiet = dataclasses.replace(
        bare(*FULL.measurements[:5]), evidence=Evidence(culprits=(Culprit("node n7", "hot", 2.0),))
    )
    page = render(quiet)
    assert 'class="verdict warning"' in page and "look here" in page
    assert "Node n7 is 2\u00a0× as slow as its like, though no line is slow." in page


def test_files_lie_next_to_each_other_and_come_back(tmp_path) -> None:
    page, document, rows = write_validation(tmp_path / "out", FULL)
    assert page.read_text() == PAGE and history.read(document) == FULL
    assert rows.read_text() == as_csv(FULL)


def test_csv_has_a_row_a_measurement_in_full_precision() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(FULL))))
    assert len(rows) == len(FULL.measurements) and tuple(rows[0]) == COLUMNS
    for row, m, v in zip(rows, FULL.measurements, FULL.verdicts, strict=True):
        assert (row["key"], row["state"]) == (m.key, v.state.value)
        assert float(row["median"]) == np.median(m.samples)
        assert int(row["repeats"]) == len(m.samples)
        assert (float(row["times"]) if row["times"] else None) == v.times
    assert {r["state"] for r in rows} == {"normal", "slow"}


def test_heat_map_shows_a_bad_node_as_a_stripe_and_pools_by_the_largest() -> None:
    source = np.random.default_rng(1)
    found = figures.heat_map(times(source, 1000, 5))
    assert found and [row[0] for row in found.rows if row[2]] == [HOSTS[5]]
    assert (
        "7 steps a column: the longest of them" in found.words and "ranks a row" not in found.words
    )
    stripes = [
        set(map(int, re.findall(r"M0 (\d+)\.5", p))) for p in re.findall(r'd="([^"]+)"', found.svg)
    ]
    assert set(range(40, 48)) <= set().union(*stripes)
    steady = tuple(
        dataclasses.replace(s, **dict.fromkeys(_PARTS, (0.01,) * 500))
        for s in times(source, 2, None)
    )
    spike = list(steady[9].input_s)
    spike[333] = 9.0
    one = dataclasses.replace(steady[9], input_s=tuple(spike))
    found = figures.heat_map((*steady[:9], one, *steady[10:]))
    assert found and re.findall(r'<path class="h5" d="M(\d+) 9\.5h1"/>', found.svg) == ["83"]
    assert found.svg.count("<path") == 1
    assert figures.heat_map(()) is None


_PARTS = ("input_s", "forward_s", "backward_s", "exposed_s", "update_s", "idle_s")


def test_heat_map_of_many_ranks_stays_small() -> None:
    steps = times(np.random.default_rng(2), 400, None)
    many = tuple(
        dataclasses.replace(s, rank=r, host=f"n{r // 4}") for r, s in enumerate([*steps * 16])
    )
    found = figures.heat_map(many)
    assert found and "16 ranks a row" in found.words and len(found.svg) < 150_000
    assert sum(rows for _, rows, _ in found.rows) == 64


def test_row_of_many_ranks_is_named_by_the_slow_one_among_them() -> None:
    steps = times(np.random.default_rng(2), 20, None)
    many = []
    for r in range(1024):
        one = dataclasses.replace(steps[r % 64], rank=r, host=f"n{r // 4:03}.hpc.example")
        slow = tuple(1.6 * s for s in one.backward_s)
        many.append(dataclasses.replace(one, backward_s=slow) if r // 4 == 77 else one)
    found = figures.heat_map(many)
    assert found and [row[0] for row in found.rows if row[2]] == ["n077"]
    bars = figures.split(many)
    assert bars[0].name == "n077" and "hpc.example" not in " ".join(b.name for b in bars)
    assert figures.short(["a.one", "b.two"]) == ["a.one", "b.two"]


def test_step_split_is_by_rank_by_node_or_by_the_slowest() -> None:
    steps = times(np.random.default_rng(1), 20, 5)
    assert [b.name for b in figures.split(steps[:8])] == [f"rank {r}" for r in range(8)]
    bars = figures.split(steps)
    assert [b.name for b in bars] == list(HOSTS)
    assert bars[5].parts[2][2] == pytest.approx(1.5 * bars[0].parts[2][2], rel=0.05)
    assert max(sum(p[3] for p in b.parts) for b in bars) == pytest.approx(100)
    many = tuple(dataclasses.replace(s, host=f"n{s.rank:02}") for s in steps)
    bars = figures.split(many)
    assert len(bars) == 12 and {b.name for b in bars[:8]} == {f"n{r}" for r in range(40, 48)}
    assert bars[-1].name.endswith("the fastest") and bars[-2].name.endswith("a usual one")


def test_strip_draws_outliers_hollow_and_stays_within() -> None:
    svg = charts.strip((1.0, 1.1, 1.2, 9.0), Summary(4, 1.1, 1.0, 1.2, 0.9, (3,)), (0.1, 1.3))
    assert svg.count("h0") == 3 and svg.count("a2.6") == 2
    assert all(0 <= float(x) <= 140 for x in re.findall(r"M([\d.-]+) 9", svg))
    assert (
        "9a2.6" in svg.split('class="o"')[1] and float(re.findall(r'd="M([\d.]+) 9a', svg)[0]) > 130
    )
    charts.strip((1.0,) * 5, summarize((1.0,) * 5), None)


def test_axis_has_few_round_ticks() -> None:
    axis = charts.decades([3e-5, 11.0], "")
    assert [t for _, t in axis.ticks] == ["0.0001", "0.001", "0.01", "0.1", "1", "10"]
    assert [t for _, t in charts.decades([40, 2600], "").ticks] == [
        "50",
        "100",
        "200",
        "500",
        "1k",
        "2k",
    ]


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (1.234e-6, "s", "1.23 µs"), (5e-10, "s", "0.500 ns"), (0.25, "s", "250 ms"), (61.0, "s", "61.0 s"),
        (3.889e9, "B/s", "3.89 GB/s"), (12.0, "B/s", "12.0 B/s"), (99.96, "B/s", "100 B/s"), (1524.4, "samples/s", "1,524 samples/s"),
    ],
)  # fmt: skip
def test_amounts_have_three_digits_and_a_fitting_unit(value: float, unit: str, words: str) -> None:
    assert amount(value, unit) == words


def test_intervals_and_factors_are_said_as_people_do() -> None:
    assert between(39.3, 40.7, "samples/s") == "39.3 to 40.7 samples/s"
    assert between(9.9e-4, 1.2e-3, "s") == "990 µs to 1.20 ms"
    assert [slower(v) for v in (1.27, 0.59, 0.99, 93.0)] == [
        "1.27 × slower",
        "1.69 × faster",
        "as usual",
        "93.0 × slower",
    ]
    assert [milliseconds(v) for v in (1249.4, 12.3, 2.36, 0.02, 0.0)] == ["1,249 ms", "12 ms", "2.4 ms", "0.02 ms", "0 ms"]  # fmt: skip


def test_labels_say_what_where_and_how() -> None:
    assert [size(n) for n in (4, 1024, 1 << 26, 102_000_000, 1500)] == ["4 B", "1 KiB", "64 MiB", "102 MB", "1.5 kB"]  # fmt: skip
    m = Measurement(What.TRAIN, Way.IMAGE, (), 8, 2, None, "resnet50", crowded=True)
    assert (
        label(m)
        == "training of resnet50, 8 ranks on 2 nodes, sharing cores, container, its own MPI"
    )
    start = Measurement(What.START, Way.CONTAINER, (), 1, subject="MPI_Init")
    assert label(start) == "start: MPI_Init, 1 rank, container"
    comm = Measurement(What.BROADCAST, Way.NATIVE, (), 2, 1, 4, "fairlead.comm (native (mpich))")
    assert label(comm) == "broadcast by fairlead.comm, native core over mpich, 4 B, 2 ranks, native"
    pair = Measurement(What.PINGPONG, Way.NATIVE, (), 2, 1, 4, "ranks 0 - 1")
    assert label(pair) == "pingpong, ranks 0 and 1, 4 B, 2 ranks, native"
    assert model_title("hepcnn") == "HEP-CNN" and model_title("mine") == "mine"


def test_lines_that_are_not_normal_are_open_and_the_others_are_counted() -> None:
    drawn = tables(FULL)
    assert [t.title for t in drawn][:3] == [
        "Training of ResNet-50 v2, under srun",
        "Allreduce by MPI itself, under srun",
        "Pingpong, one way, under srun",
    ]
    assert [t.opened for t in drawn[:2]] == [True, False]
    assert drawn[0].counts == (("warning", "slow", 2), ("ok", "normal", 12))
    assert sum(n for t in drawn for _, _, n in t.counts) == len(FULL.measurements)
    body = PAGE[PAGE.index('id="lines"') :]
    assert body.count("<details open>") == 1 and body.count("<details>") == len(drawn) - 1


def test_each_carrier_of_messages_has_a_figure_and_a_table() -> None:
    rows = [
        Measurement(What.ALLREDUCE, Way.NATIVE, (1e-5,) * 6, 2, 1, 10**k, by)
        for k in range(1, 5)
        for by in ("", "fairlead.comm (native (mpich))")
    ]
    few = bare(*rows)
    found = figures.bandwidths(few, What.ALLREDUCE)
    assert [f.title for f in found] == [
        "Allreduce, 2 ranks on 1 node",
        "Allreduce by fairlead.comm, native core over mpich, 2 ranks on 1 node",
    ]
    assert "<title>native: 1 kB, 100 MB/s</title>" in found[0].svg
    assert [len(t.rows) for t in tables(few)] == [4, 4]


def test_ranks_that_share_cores_are_marked_and_do_not_stand_for_scaling() -> None:
    rates = ((1, 10.0), (2, 19.0), (4, 18.0))
    made = bare(
        *(
            Measurement(What.TRAIN, Way.NATIVE, (v,) * 6, n, 1, None, "hepcnn", crowded=n > 2)
            for n, v in rates
        )
    )
    page = render(made)
    assert "<b>95 %</b> of ideal" in page and "HEP-CNN on 2 ranks" in page
    assert page.count("ranks share cores") == 2  # in both curves
    assert '4<span class="soft">sharing cores</span>' in page
    start = figures._crowded(made.measurements)
    assert start and 2 < start[0] < 4


def test_speed_of_a_model_that_ran_natively_only_is_described_whatever_else_ran() -> None:
    def trained(way: Way, name: str) -> list[Measurement]:
        return [Measurement(What.TRAIN, way, (9.0 * n,) * 6, n, 1, None, name) for n in (1, 2)]

    both = bare(*trained(Way.NATIVE, "a"), *trained(Way.CONTAINER, "b"))
    for name in ("a", "b"):
        speed, _ = figures.scaling(name, figures.trained(both)[name])
        assert f"Speed of {name} against ranks: 100 % of ideal on 2 ranks" in speed.svg


def test_proof_shows_ranks_that_saw_something_else_first() -> None:
    assert FULL.proof
    ranks = list(FULL.proof.ranks)
    assert all(r.as_planned for r in ranks) and len(ranks) == 64
    ranks[20] = dataclasses.replace(ranks[20], as_planned=False, transport="ofi: tcp")
    page = render(
        dataclasses.replace(FULL, proof=dataclasses.replace(FULL.proof, ranks=tuple(ranks)))
    )
    rows = re.findall(r'data-name="ranks">([^<]+)<', page[page.index("Proof:") :])
    assert rows == ["20", "0–19", "21–63"]
    assert "3 hosts" not in page and f"6 hosts, {HOSTS[2]} to {HOSTS[7]}" in page
    assert page.count(">FAIL<") == 1


def test_proof_kept_holds_each_rank_against_the_plan() -> None:
    rank = RankProof(0, 2, "h", "/mpi", 7, 1, "MPICH 5", "ofi", ("cxi",), True, {})
    ranks = [rank] + [
        dataclasses.replace(rank, **change)
        for change in ({"size": 1}, {"mpi_count": 2}, {"mpi_path": "/own"}, {"mpi_inode": 8})
    ]
    kept_ = proof_record(Proof(2, "/mpi", 7, "MPICH 5", tuple(ranks), (), 1.0))
    assert [r.as_planned for r in kept_.ranks] == [True, False, False, False, False]
    own = proof_record(Proof(2, "/mpi", 0, "MPICH 5", tuple(ranks), (), 1.0))  # no inode to compare
    assert [r.as_planned for r in own.ranks] == [True, False, False, False, True]


def test_states_all_have_a_word_of_the_page() -> None:
    from fairlead.perf.draw.tables import ORDER, WORD

    assert set(WORD) == set(ORDER) == set(State)
