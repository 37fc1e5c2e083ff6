"""The long tests' outcomes, kept over runs of parts."""

from __future__ import annotations

from typing import Any

from tests.outcomes import merged


def run(begun: str) -> dict[str, Any]:
    return {"begun": begun, "commit": f"of-{begun}"}


def row(test: str, outcome: str = "passed") -> dict[str, Any]:
    return {"test": test, "outcome": outcome, "duration_s": 1.0}


def test_a_part_replaces_its_own_and_leaves_the_others() -> None:
    first = merged({}, run("1"), [row("a", "failed"), row("b")], {"a", "b"})
    assert (first["passed"], first["failed"], first["skipped"]) == (1, 1, 0)
    second = merged(first, run("2"), [row("a")], None)
    assert {r["test"]: (r["outcome"], r["run"]) for r in second["tests"]} == {
        "a": ("passed", "2"),
        "b": ("passed", "1"),
    }
    assert [r["commit"] for r in second["runs"]] == ["of-1", "of-2"]
    assert (second["passed"], second["failed"]) == (2, 0)


def test_run_of_which_nothing_is_left_is_forgotten_and_so_are_tests_that_are_gone() -> None:
    first = merged({}, run("1"), [row("a"), row("gone")], None)
    second = merged(first, run("2"), [row("a")], {"a", "b"})
    assert [r["begun"] for r in second["runs"]] == ["2"]
    assert [r["test"] for r in second["tests"]] == ["a"]


def test_failure_around_a_test_counts_whatever_the_order() -> None:
    for rows in ([row("a"), row("a", "failed")], [row("a", "failed"), row("a")]):
        assert merged({}, run("1"), rows, None)["failed"] == 1


def test_another_version_is_begun_again() -> None:
    old = {"version": 1, "tests": [row("a")], "begun": "0"}
    assert [r["test"] for r in merged(old, run("1"), [row("b")], None)["tests"]] == ["b"]
