"""What changed between two validations, and `fairlead report`, which says so."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.validated import demo

from fairlead.base.errors import ExitCode
from fairlead.cli.main import main
from fairlead.perf.draw.comparison_page import render
from fairlead.perf.judge.compare import Change, compare
from fairlead.perf.records import history
from fairlead.perf.records.validation import Validation, Way, What

BEFORE = demo(seed=3, bad_node=None, steps=2, id="20260101T000000-demo")
AGAIN = demo(seed=4, bad_node=None, steps=2, id="20260102T000000-demo")
SLOWER = demo(seed=5, bad_node=None, steps=2, upgraded=True, id="20260103T000000-demo")


def test_same_set_up_shows_no_change() -> None:
    found = compare(BEFORE, AGAIN)
    assert {line.change for line in found.lines} == {Change.SAME}
    assert len(found.lines) == 77 and found.facts == ()
    assert found.only_before == found.only_after == ()


def test_upgrade_shows_facts_and_slower_lines_by_their_ratio() -> None:
    found = compare(BEFORE, SLOWER)
    assert [(f.name, f.before, f.after) for f in found.facts] == [
        ("mpi", "CRAY MPICH version 8.1.29.50", "CRAY MPICH 8.1.31")
    ]
    slow = found.of(Change.SLOWER)
    assert len(slow) > 50 and all(line.key.split()[0] in ("pingpong", "allreduce") for line in slow)
    for line in slow:
        assert line.low is not None and line.high is not None and line.p is not None
        assert 1.15 < line.times < 1.35 and line.low <= line.times <= line.high and line.p < 0.05
    assert compare(SLOWER, BEFORE).of(Change.FASTER)[0].times == pytest.approx(
        1 / slow[-1].times, abs=0.1
    )
    assert len(found.slower_by(10)) == len(slow) and not found.slower_by(100)


def test_rates_are_slower_when_smaller() -> None:
    bad = demo(seed=6, bad_node=5, steps=2)
    found = compare(BEFORE, bad).of(Change.SLOWER)
    assert {line.key.split()[0] for line in found} == {"train"}
    assert all(1.3 < line.times < 1.7 and line.before > line.after for line in found)


def with_repeats(validation: Validation, number: int) -> Validation:
    short = tuple(
        dataclasses.replace(m, samples=m.samples[:number]) for m in validation.measurements
    )
    return dataclasses.replace(validation, measurements=short)


def test_too_few_repeats_are_no_proof_of_sameness() -> None:
    found = compare(with_repeats(BEFORE, 5), with_repeats(SLOWER, 5))
    unknown = found.of(Change.UNKNOWN)
    assert (
        len(unknown) > 20
        and "too few repeats for 77 lines: 5 and 5; 7 on each side" in unknown[0].why
    )
    assert not found.of(Change.SLOWER)
    found = compare(with_repeats(BEFORE, 4), SLOWER)
    assert {line.change for line in found.lines} == {Change.UNKNOWN}
    assert all(line.p is None and line.low is None for line in found.lines)


@pytest.mark.parametrize(("load", "judged"), [(0.1, True), (None, True), (1.9, False)])
@pytest.mark.parametrize("side", [0, 1])
def test_loaded_node_is_compared_with_nothing(load: float | None, judged: bool, side: int) -> None:
    pair = [BEFORE, SLOWER]
    evidence = dataclasses.replace(pair[side].evidence, cores=2, load=load)
    pair[side] = dataclasses.replace(pair[side], evidence=evidence)
    found = compare(*pair)
    assert bool(found.of(Change.SLOWER)) is judged
    if not judged:
        assert {line.change for line in found.lines} == {Change.UNKNOWN}
        assert found.lines[0].why.startswith(("before: other work", "after: other work")[side])
    asked = dataclasses.replace(evidence, despite_load=True)
    pair[side] = dataclasses.replace(pair[side], evidence=asked)
    assert compare(*pair).of(Change.SLOWER)


def test_lines_of_one_side_and_unlike_ones_are_reported() -> None:
    kinds = [m for m in BEFORE.measurements if m.what is not What.START]
    gone = dataclasses.replace(
        BEFORE,
        measurements=tuple(kinds),
        verdicts=tuple(v for v in BEFORE.verdicts if not v.key.startswith("start")),
    )
    assert len(compare(BEFORE, gone).only_before) == len(compare(gone, BEFORE).only_after) == 3
    crowd = tuple(dataclasses.replace(m, crowded=True) for m in BEFORE.measurements)
    found = compare(BEFORE, dataclasses.replace(BEFORE, measurements=crowd)).lines[0]
    assert found.change is Change.UNKNOWN and "shared cores after only" in found.why
    wrong = tuple(dataclasses.replace(m, wrong=1) for m in BEFORE.measurements)
    found = compare(BEFORE, dataclasses.replace(BEFORE, measurements=wrong)).lines[0]
    assert found.change is Change.UNKNOWN and "answers were wrong" in found.why


def test_change_that_no_reader_would_act_on_is_none() -> None:
    def with_samples(*values: float) -> Validation:
        m = dataclasses.replace(BEFORE.measurements[0], samples=values, way=Way.NATIVE)
        return dataclasses.replace(BEFORE, measurements=(m,), verdicts=BEFORE.verdicts[:1])

    steady = [1 + i / 1e6 for i in range(12)]
    found = compare(with_samples(*steady), with_samples(*(1.01 * x for x in steady))).lines[0]
    assert found.p is not None and found.p < 1e-5 and found.change is Change.SAME


def test_line_that_is_apart_and_not_proved_to_have_changed_is_not_called_the_same() -> None:
    lines = compare(BEFORE, SLOWER).lines
    open_ = [x for x in lines if x.change is Change.UNKNOWN]
    assert open_ and all(x.p >= 0.05 and x.low > 1.02 for x in open_)
    assert all("medians are apart" in x.why and "77 lines" in x.why for x in open_)
    for line in (x for x in lines if x.change is Change.SAME):
        assert line.low < 1.02 and line.high > 1 / 1.02


def test_page_of_a_comparison_says_what_moved_and_what_differs() -> None:
    page = render(BEFORE, SLOWER)
    slow = len(compare(BEFORE, SLOWER).of(Change.SLOWER))
    (said,) = re.findall("<h1>(.*?)</h1>", page)
    assert said.startswith(f"{slow} of 77 lines are slower, the most ")
    assert "CRAY MPICH 8.1.31" in page and page.count('<svg class="forest"') == 77
    assert page.count('<path class="m slower"') == slow
    assert 'class="verdict warning"' in page and 'class="verdict ok"' in render(SLOWER, BEFORE)
    same = render(BEFORE, AGAIN)
    assert "<h1>No significant change in 77 of 77 lines.</h1>" in same
    assert "Nothing that either of them has recorded." in same and "<details open" not in same
    none = dataclasses.replace(AGAIN, measurements=(), verdicts=())
    only = render(BEFORE, none)
    assert "The two have no line in common." in only and "<h2>Only before</h2>" in only


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    made = {"XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "120"}
    for validation in (BEFORE, AGAIN, SLOWER):
        history.keep(validation, made)
    return made


def call(environ: dict[str, str], *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["report", *words], env=environ, standalone_mode=False)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.return_value or 0, done.output


def test_report_lists_what_is_kept(environ: dict[str, str]) -> None:
    code, said = call(environ, "--list")
    assert code == 0
    assert [line.split()[:2] for line in said.splitlines()[1:]] == [
        [BEFORE.id, "normal"],
        [AGAIN.id, "normal"],
        [SLOWER.id, "normal"],
    ]
    data = json.loads(call(environ, "--list", "--json")[1])
    assert data["schema"] == "fairlead/report-list" and len(data["validations"]) == 3
    assert call({"XDG_STATE_HOME": "/nonexistent"}, "--list")[0] == 0


def test_report_draws_the_last_again(environ: dict[str, str], tmp_path: Path) -> None:
    code, said = call(environ, "-o", str(tmp_path / "out"))
    assert code == 0 and SLOWER.id in said
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "validation.csv",
        "validation.html",
        "validation.json",
    ]
    assert history.read(tmp_path / "out" / "validation.json") == SLOWER
    data = json.loads(call(environ, "20260101", "-o", str(tmp_path / "b"), "--json")[1])
    assert data["id"] == BEFORE.id and Path(data["page"]).is_file()


def test_report_compare_says_what_changed(environ: dict[str, str]) -> None:
    code, said = call(environ, "--compare", "last~2", "last")
    assert code == 0
    assert "mpi   CRAY MPICH version 8.1.29.50  CRAY MPICH 8.1.31" in said
    assert "Slower: 5" in said and "Faster" not in said and "× slower [" in said
    assert "No significant change: 2" in said
    assert "report:" not in said
    out = environ["XDG_STATE_HOME"] + "/upgrade"
    code, said = call(environ, "--compare", "last~2", "last", "-o", out)
    assert code == 0 and said.endswith(f"report: {out}/comparison.html\n")
    assert [p.name for p in Path(out).iterdir()] == ["comparison.html"]
    code, said = call(environ, "--compare", "last~2", "last~1")
    assert code == 0 and "Facts that differ\n  none" in said and "Slower" not in said
    assert "No significant change: 77 of 77 lines" in said


def test_report_compare_fails_only_when_asked_to(environ: dict[str, str]) -> None:
    words = ("--compare", "last~2", "last", "--fail-if-slower")
    assert call(environ, *words, "10")[0] == ExitCode.BELOW_REFERENCE
    assert call(environ, *words, "50")[0] == ExitCode.DONE
    code, said = call(environ, *words, "10", "--json")
    data = json.loads(said)
    assert code == ExitCode.BELOW_REFERENCE and data["schema"] == "fairlead/report-compare"
    assert len(data["failed"]) > 50 and data["lines"][0]["change"] == "slower"


@pytest.mark.parametrize(
    "words",
    [
        ("last", "--list"),
        ("--list", "--compare", "a", "b"),
        ("--fail-if-slower", "5"),
        ("--list", "-o", "x"),
    ],
)
def test_report_words_that_exclude_each_other_are_bad_usage(
    environ, words: tuple[str, ...]
) -> None:
    done = CliRunner().invoke(main, ["report", *words], env=environ)
    assert done.exit_code == ExitCode.USAGE
