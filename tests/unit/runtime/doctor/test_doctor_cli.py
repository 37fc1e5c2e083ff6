"""``fairlead doctor``'s own words, where no machine is examined."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.findings import ill, note

from fairlead.base.errors import Severity
from fairlead.cli import doctor as verb
from fairlead.cli.doctor import doctor
from fairlead.doctor.diagnosis import Check, Diagnosis, OwnFix, well
from fairlead.doctor.registry import ordered
from fairlead.doctor.world import World


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fus"], "Did you mean `fuse`?"),
        (["zzz"], "Known: capabilities, cgroups,"),
        (["--yes"], "--yes and --host-mpi belong to --fix"),
        (["--host-mpi", "mpich==5.0.2"], "--yes and --host-mpi belong to --fix"),
        (["--fix"], "there is no terminal; add --yes"),
    ],
)
def test_doctor_wrong_words_are_bad_usage(words: list[str], said: str) -> None:
    result = CliRunner().invoke(doctor, words)
    assert result.exit_code == 2
    assert said in result.output


def test_doctor_help_lists_every_check() -> None:
    shown = CliRunner().invoke(doctor, ["--help"]).output
    assert all(check.name in shown and check.about in shown for check in ordered())


def _well(world: World) -> list[Diagnosis]:
    return [well("it is well", "tried")]


def _worth_knowing(world: World) -> list[Diagnosis]:
    return [note("two", "it is odd", why="this is why", remedy="nothing is to be done")]


def _ill(world: World) -> list[Diagnosis]:
    fix = OwnFix("repairs it", lambda progress: None)
    return [
        ill("three", "it stops", where="here", why="so", remedy="do this", fix=fix),
        ill(
            "three",
            "it is slow",
            where="there",
            why="so",
            remedy="do that",
            severity=Severity.WARNING,
        ),
    ]


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = (
        Check("one", "the first", _well, "Head"),
        Check("two", "the second", _worth_knowing, "Head"),
        Check("three", "the third", _ill, "Tail"),
    )
    monkeypatch.setattr(verb, "CHECKS", checks)


def test_doctor_shows_a_line_a_check_and_the_ill_in_full_with_the_worst_last(three: None) -> None:
    done = CliRunner().invoke(doctor, [], standalone_mode=False)
    head, tail = done.stdout.split("\n\n", 1)
    assert [line.split()[:2] for line in head.splitlines()] == [
        ["Head"],
        ["ok", "one"],
        ["info", "two"],
        ["Tail"],
        ["FAIL", "three"],
        ["WARN", "three"],
    ]
    warning, error, last = tail.split("\n\n")
    assert warning.splitlines() == [
        "warning[three]: it is slow",
        "where: there",
        "why:   so",
        "next:  do that",
    ]
    assert error.splitlines()[0] == "error[three]: it stops"
    assert error.splitlines()[-1] == "fix:   repairs it"
    assert last.startswith("3 checks: 1 error, 1 warning, 1 worth knowing (")
    assert "to know more: fairlead doctor two" in last
    assert "this is why" not in done.stdout
    assert done.return_value == 1


def test_doctor_of_a_named_check_reports_all(three: None) -> None:
    done = CliRunner().invoke(doctor, ["one", "two"], standalone_mode=False)
    assert "Head" not in done.stdout
    assert "why:   tried" in done.stdout and "why:   this is why" in done.stdout
    assert "next:  nothing is to be done" in done.stdout
    assert done.return_value == 0


def test_doctor_as_json_has_every_finding_and_the_sums(three: None) -> None:
    done = CliRunner().invoke(doctor, ["--json"], standalone_mode=False)
    answer = json.loads(done.stdout)
    assert (answer["schema"], answer["errors"], answer["warnings"]) == ("fairlead/doctor", 1, 1)
    assert [f["check"] for f in answer["findings"]] == ["one", "two", "three", "three"]
    assert answer["findings"][2]["fix"] == {"does": "repairs it", "needs_root": False}


def test_every_check_has_a_topic_and_topics_do_not_come_again() -> None:
    topics = [check.topic for check in ordered()]
    assert all(topics)
    assert topics == sorted(topics, key=topics.index)
    assert len({check.name for check in ordered()}) == len(ordered())
