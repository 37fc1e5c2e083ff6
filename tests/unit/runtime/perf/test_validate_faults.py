"""What a verdict begins with: broken before slow, the most fundamental first; the exit code follows."""

from __future__ import annotations

import dataclasses
import errno
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import pytest
from tests.findings import error, fail
from tests.support.validated import demo
from tests.unit.runtime.perf.test_verdict import EXACT, measured, reference

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity
from fairlead.base.progress import Silent
from fairlead.cli.validate import _data
from fairlead.launch import launch
from fairlead.launch.launch import LaunchResult
from fairlead.launch.run_folder import RankExit
from fairlead.ml.train import runner
from fairlead.ml.train.runner import RunOutcome
from fairlead.perf.draw.validation_page import render
from fairlead.perf.judge import assess, faults
from fairlead.perf.judge.references import save
from fairlead.perf.judge.verdict import exit_code, headline, judge
from fairlead.perf.measure.ranks import stragglers as pairs
from fairlead.perf.measure.step import Context, Observations, Options
from fairlead.perf.measure.straggler_search import Answer, Kind
from fairlead.perf.records.validation import (
    Bounds,
    Culprit,
    Evidence,
    Machine,
    Measurement,
    State,
    Validation,
    Way,
    What,
)

KILLED = error("rank 1 failed first: killed by SIGKILL", where="a training: rank 1 on n0, in step 3", check="rank-failed")  # fmt: skip
OTHER_MPI = error("rank 0 runs on another MPI than planned: X", where="n0: /x", check="planned-file")  # fmt: skip
WRONG = error("3 answers were wrong", where="messages", check="validate-wrong")
NAN = error("the loss on rank 1 is not finite in step 3", where="rank 1", check="loss-not-finite")  # fmt: skip
DATA = error("a.h5 is not a whole file", where="input: /d/a.h5", check="data-damaged")
FULL = error("a checkpoint cannot be written", where="/o", check="validate-checkpoint")
ODD = error("something else", where="here", check="unheard-of")
CLOCK = Finding(Severity.WARNING, "the clock of n1 is 5 s ahead", "n1", check="validate-clock")
SKIPPED = Finding(Severity.WARNING, "1 damaged file was left out", "/d/b.h5", check="train-skipped")
IN_ORDER = (OTHER_MPI, WRONG, KILLED, NAN, DATA, FULL, ODD, SKIPPED, CLOCK)


def validation(
    *found: Finding,
    measurements: Sequence[Measurement] = (),
    evidence: Evidence = Evidence(),  # noqa: B008
    references: Mapping[str, object] | None = None,
) -> Validation:
    verdicts = judge(measurements, references or {}, Bounds(), evidence)  # type: ignore[arg-type]
    return Validation(
        "i", "2026-01-02T03:04:05", 1.0, "", Machine("s", ("n0",), 2), tuple(measurements), verdicts,
        evidence, faults=faults.ranked(found),
    )  # fmt: skip


SLOW = measured(1.5, ranks=2)


def slow(*found: Finding, evidence: Evidence = Evidence()) -> Validation:  # noqa: B008
    return validation(
        *found, measurements=[SLOW], evidence=evidence, references=reference(measured(ranks=2))
    )


def test_faults_are_in_the_order_of_what_they_make_worthless() -> None:
    for seed in range(20):
        mixed = random.Random(seed).sample(IN_ORDER, len(IN_ORDER))
        assert faults.ranked(mixed) == IN_ORDER


def test_fault_that_ended_the_validation_is_first_whatever_it_is() -> None:
    assert faults.ranked(IN_ORDER, [ODD]) == (ODD, *(f for f in IN_ORDER if f != ODD))


def test_references_are_not_kept_of_a_machine_where_something_broke() -> None:
    with pytest.raises(FairleadError) as caught:
        save(validation(KILLED, measurements=[measured()]))
    assert "something broke: rank 1 failed first" in caught.value.findings[0].why


def test_fault_of_several_steps_is_reported_once_and_who_is_slow_is_none() -> None:
    again = dataclasses.replace(DATA, where="training: /d/a.h5")
    slower = Finding(Severity.WARNING, "link of n1", "n1", check="validate-slow")
    (found,) = faults.ranked([DATA, again, DATA, slower, Finding(Severity.INFO, "so", "there")])
    assert found == dataclasses.replace(DATA, where="input: /d/a.h5; 1 other step too")


@pytest.mark.parametrize("first", [OTHER_MPI, KILLED, NAN, DATA, FULL, ODD])
def test_headline_begins_with_what_broke_and_slow_comes_after(first: Finding) -> None:
    said = headline(slow(first, CLOCK))
    assert said.startswith(faults.sentence(first)) and said[0].isupper()
    assert first.where in said and "1 of 1 line is slow" in said
    assert said.endswith("The clock of n1 is 5 s ahead.")
    assert "and 2 more broke" in headline(slow(KILLED, DATA, NAN))


def test_headline_of_wrong_answers_leads_but_for_another_mpi() -> None:
    lines = [measured(wrong=2)]
    said = headline(validation(WRONG, KILLED, measurements=lines))
    assert said.startswith("Wrong answers in 1 of 1 line")
    said = headline(validation(WRONG, OTHER_MPI, measurements=lines))
    assert said.startswith("Rank 0 runs on another MPI") and "Wrong answers in 1" in said


def test_headline_names_who_is_slow_before_what_is() -> None:
    bad = Culprit("node n1", "slow", 3.0, ("n1",), 1)
    said = headline(slow(evidence=Evidence(culprits=(bad,))))
    assert said.startswith("Node n1 is 3 × as slow as its like: 1 of 1 line is slow")
    elsewhere = dataclasses.replace(bad, from_nodes=9)
    said = headline(slow(evidence=Evidence(culprits=(elsewhere,))))
    assert said.startswith("Node n1 is 3 × as slow as its like; besides, 1 of 1 line is slow")
    loaded = Evidence(cores=1, load=9.0, despite_load=True)
    assert "most likely because other work is on the node." in headline(slow(evidence=loaded))
    assert headline(slow()).endswith("slower than it should be.")


def test_warning_is_a_second_sentence() -> None:
    found = validation(SKIPPED, measurements=[measured()], references=reference(measured()))
    assert headline(found).startswith("As fast as it should be: 1 of 1 line")
    assert headline(found).endswith("1 damaged file was left out (/d/b.h5).")
    assert exit_code(found) is ExitCode.DONE


def test_exit_code_is_that_of_what_is_most_fundamental() -> None:
    assert exit_code(slow(OTHER_MPI, KILLED)) is ExitCode.PROOF_FAILED
    wrong = validation(KILLED, WRONG, measurements=[measured(wrong=1)])
    assert exit_code(wrong) is ExitCode.BELOW_REFERENCE
    for broken in (KILLED, NAN, DATA, FULL, ODD, next(faults.native_mpi({"native": "A", "container": "B"}))):  # fmt: skip
        assert exit_code(slow(broken)) is ExitCode.FAILED
    assert exit_code(slow(CLOCK)) is ExitCode.BELOW_REFERENCE
    assert exit_code(validation()) is ExitCode.DONE


def test_native_mpi_is_compared_where_both_ran() -> None:
    assert not list(faults.native_mpi({"native": "A", "container": "A"}))
    assert not list(faults.native_mpi({"native": "A"}))
    (found,) = faults.native_mpi({"native": "A 1", "container": "B 2"})
    assert "A 1" in found.where and "B 2" in found.why


def test_line_that_could_not_be_measured_says_why() -> None:
    line = measured(samples=())
    evidence = Evidence(failed={line.key: dataclasses.replace(DATA, remedy="rm it")})
    (found,) = judge([line], {}, Bounds(), evidence)
    assert found.state is State.UNKNOWN and found.remedy == "rm it"
    assert found.because == "it could not be measured: a.h5 is not a whole file (input: /d/a.h5)"


def test_page_says_what_broke_before_what_is_slow() -> None:
    page = render(dataclasses.replace(demo(steps=2), faults=(KILLED, CLOCK)))
    body = page[page.index("<body") :]
    assert body.index("killed by SIGKILL") < body.index("Node nid001006")
    assert 'class="badge error">broken' in body and "the clock of n1" in body
    page = render(dataclasses.replace(demo(bad_node=None, steps=2), faults=(CLOCK,)))
    assert 'class="badge warning">look here' in page


# --- the link between two nodes -------------------------------------------------------------------


def pingpong(times: float, size: int, nodes: int = 2) -> Measurement:
    samples = tuple(1e-9 * size * times * x for x in EXACT)
    return Measurement(What.PINGPONG, Way.CONTAINER, samples, 2, nodes, size, hosts=("a", "b"))


def between(
    lines: Sequence[Measurement], hosts: tuple[str, ...] = ("a", "b"), **more: object
) -> Culprit | None:
    kept = {k: v for m in lines for k, v in reference(m, 1e-9 * (m.bytes or 0)).items()}
    evidence = Evidence(**more)  # type: ignore[arg-type]
    return assess.link_between_two(lines, judge(lines, kept, Bounds(), evidence), evidence, hosts)


def test_link_between_two_is_named_where_all_its_large_messages_are_slow() -> None:
    lines = [pingpong(1, 8), pingpong(9, 1 << 20), pingpong(12, 1 << 22), pingpong(1, 1 << 22, 1)]
    found = between(lines)
    assert found and found.name == "link between a and b" and found.hosts == ("a", "b")
    assert found.times == pytest.approx(12) and found.from_nodes == 2
    assert "4096 KiB one way took 50.3 ms" in found.seen and "reference" in found.seen
    assert between([*lines, pingpong(1, 1 << 21)]) is None
    assert between(lines[:1]) is None
    assert between(lines, ("a", "b", "c")) is None
    assert between(lines, culprits=(Culprit("processor of a", "", 2.0, ("a",)),)) is None
    other = {"mpis": {"container": "MPICH 3"}, "planned_mpi": "MPICH 5"}
    assert between(lines, **other) is None


# --- launches and steps that fail -----------------------------------------------------------------


def killed(code: int) -> Finding | None:
    ranks = (RankExit("1", code, 1), RankExit("0", 137, 2))
    return launch.killed(LaunchResult(code, 9, 2, ranks, 1.0, 0), {1: "n0017"})


def test_killed_rank_is_named_with_its_host() -> None:
    found = killed(137)
    assert found and found.where == "rank 1 on n0017" and "SIGKILL" in found.what
    assert killed(1) is None
    assert (
        launch.on_host("rank 1, killed by SIGSEGV", {1: "n2"}) == "rank 1 on n2, killed by SIGSEGV"
    )
    assert (
        launch.on_host("rank 1", {0: "n2"}) == "rank 1"
        and launch.on_host("here", {1: "n"}) == "here"
    )


def launched(events: Path, outcome: RunOutcome, *output: dict[str, object]) -> Finding:
    events.write_text("".join(json.dumps(one) + "\n" for one in output))
    with pytest.raises(FairleadError) as caught:
        runner.launch(lambda *_: outcome, 2, ["python3", "-m", "x"], [], events)
    return caught.value.findings[0]


def test_rank_that_was_killed_is_the_cause_and_not_what_the_others_say(tmp_path: Path) -> None:
    outcome = RunOutcome(137, "", killed(137))
    steps = [{"event": "step", "step": n} for n in (1, 2)]
    lost = {"event": "error", "what": "rank 1 is gone", "check": "comm-peer-lost"}
    found = launched(tmp_path / "e", outcome, *steps, lost)
    assert found.where == "rank 1 on n0017, in step 3" and found.check == "rank-failed"
    found = launched(tmp_path / "e", outcome)
    assert found.where == "rank 1 on n0017, before its first step was over"
    own = {"event": "error", "what": "a NaN", "check": "loss-not-finite", "where": "rank 0"}
    assert launched(tmp_path / "e", outcome, *steps, own).what == "a NaN"


def tried(cause: Exception, seen: Observations) -> None:
    def step() -> None:
        raise cause

    line = Measurement(What.INPUT, Way.CONTAINER, (), subject="hepcnn")
    context = Context(Options(Path(), (1,), ()), {}, "hydra", Silent(), seen)
    context.attempt("input", step, [line])


def test_step_that_fails_leaves_a_line_with_its_reason() -> None:
    seen = Observations(placed=("n0", "n1"))
    tried(fail("it broke", where="/d", why="so", check="data-damaged"), seen)
    tried(OSError(errno.ENOSPC, "No space left on device", "/o/x.json"), seen)
    assert [m.key for m in seen.measurements] == ["input container 1r1n hepcnn"]
    assert seen.failed["input container 1r1n hepcnn"].where == "input: /d"
    assert [f.check for f in seen.findings] == ["data-damaged", "output-unwritable"]
    for where in ("rank 1, killed", "rank 1 on n1, killed"):
        tried(fail("it died", where=where, check="rank-died"), seen)
        assert seen.findings.pop().where == "input: rank 1 on n1, killed"
    assert "No space left" in seen.findings[1].why and "/o/x.json" in seen.findings[1].where
    with pytest.raises(FairleadError):
        tried(fail("another MPI", check="planned-file", code=ExitCode.PROOF_FAILED), seen)
    assert seen.findings[-1].check == "planned-file"  # it ends the steps, and is kept


# --- own data ---------------------------------------------------------------------------------------


def test_data_folders_are_distinguished_by_model(tmp_path: Path) -> None:
    folder = tmp_path / "a=b"
    folder.mkdir()
    assert _data((), ("hepcnn",)) == {}
    assert _data((str(folder),), ("hepcnn",)) == {"hepcnn": folder}
    both = _data((f"hepcnn={folder}", f"cosmoflow={tmp_path}"), ("hepcnn", "cosmoflow"))
    assert both == {"hepcnn": folder, "cosmoflow": tmp_path}


@pytest.mark.parametrize(
    ("words", "models", "said"),
    [
        (("/",), ("hepcnn", "cosmoflow"), "2 models are measured; write e.g. --data hepcnn=/"),
        (("/",), (), "leave it out"),
        (("cosmoflow=/",), ("hepcnn",), "cosmoflow is not measured"),
        (("hepcnn=/", "hepcnn=/"), ("hepcnn",), "named twice"),
        (("/nowhere/at/all",), ("hepcnn",), "there is no folder"),
    ],
)
def test_data_folders_that_cannot_be_meant_are_refused(
    words: tuple[str, ...], models: tuple[str, ...], said: str
) -> None:
    with pytest.raises(click.UsageError, match=said):
        _data(words, models)


def test_of_two_nodes_one_way_is_held_against_the_other() -> None:
    quick, slow_ones = (0.9e-3, 1e-3, 1.1e-3), (8e-3, 9e-3, 12e-3)
    for taken, path in (((slow_ones, quick), "from a to b"), ((quick, slow_ones), "from b to a")):
        found = pairs.two_ways(("a", "b"), (0, 2), taken, 2.0)
        (culprit,) = found.culprits
        assert culprit.kind is Kind.PAIR and culprit.names == ("a", "b") and culprit.ranks == (0, 2)
        assert path in culprit.evidence and culprit.times_slower == pytest.approx(9)
    unsteady = (0.9e-3, 9e-3, 12e-3)  # a turn of another process, not the link
    for taken in ((quick, quick), (slow_ones, slow_ones), (unsteady, quick)):
        found = pairs.two_ways(("a", "b"), (0, 2), taken, 2.0)
        assert not found.culprits and found.answer is Answer.UNKNOWN and "one link" in found.reason
