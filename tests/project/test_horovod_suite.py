"""What is kept of Horovod's test suite: the page, the reasons, and the bar."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.peers.horovod_suite import Outcome, Outcomes, together
from tools import horovod_page

ROOT = Path(__file__).resolve().parents[2]
BAR = 0.85
KEPT = horovod_page.results(ROOT)


def test_page_is_what_is_kept() -> None:
    assert (ROOT / horovod_page.PAGE).read_text() == horovod_page.page(ROOT)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: f"{kept.file} {kept.ranks}")
def test_kept_outcomes_reach_the_bar(kept: Outcomes) -> None:
    assert kept.share >= BAR
    assert kept.ranks >= 2 or kept.file.startswith("single/")


def test_failures_have_reasons_and_nothing_else_has() -> None:
    failed: dict[str, set[str]] = {}
    for kept in KEPT:
        names = {name for name, test in kept.tests.items() if test.outcome == "failed"}
        failed.setdefault(kept.file, set()).update(names)
    given = {file: set(names) for file, names in horovod_page.reasons(ROOT).items()}
    assert not given.pop(horovod_page.NOT_RUN) & {kept.file for kept in KEPT}
    assert given == {file: names for file, names in failed.items() if names}


@pytest.mark.parametrize(
    ("each", "outcome"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "failed"], "failed"),
        (["skipped", "skipped"], "skipped"),
        (["skipped", "passed"], "failed"),
        (["passed", None], "failed"),
    ],
)
def test_a_test_passes_that_passes_on_all_ranks(each: list[str | None], outcome: str) -> None:
    ranks = [{} if one is None else {"a": Outcome(one)} for one in each]
    assert together("a", ranks).outcome == outcome
