"""The page of a search: what stands in it, for one trial, for hundreds, and for none that came to a value."""

from __future__ import annotations

import random
import re

import pytest

from fairlead.tune.page import _label, render
from fairlead.tune.result import TuneResult
from fairlead.tune.study import Trial


def _trial(number: int, two: bool, state: str = "complete") -> Trial:
    draw = random.Random(number)
    chosen = {"rate": 10 ** draw.uniform(-5, -1), "kind": draw.choice("ab"), "zeta": draw.random()}
    chosen |= {f"filters[{i}]": draw.randrange(16, 129, 16) for i in range(3)}
    values = {"auc": chosen["rate"]} | ({"size": chosen["zeta"]} if two else {})
    done = state == "complete"
    return Trial(
        number, state, values if done else {}, {"rate": chosen["rate"], "filters": [16, 32], "on": True}, chosen,
        why="" if done else "exit code 1; <boom>", reports=((1, 0.5), (2, 0.25)), source=0 if number else None,
        lost=("node7 is lost",) if number == 1 else (),
    )  # fmt: skip


def _result(count: int, *, two: bool = False, failing: bool = False) -> TuneResult:
    trials = tuple(_trial(n, two, "failed" if failing else "complete") for n in range(count))
    objectives = {"auc": "maximize"} | ({"size": "minimize"} if two else {})
    best = () if failing else (max(trials, key=lambda t: t.values["auc"]).number,)
    shares = {"zeta": 0.7, "rate": 0.2} if count >= 8 and not two else {}
    return TuneResult(
        "train.py", "mpi-base", 1, "tpe", "none", 1, count, objectives, trials, best, shares
    )


def _titles(page: str) -> list[str]:
    return re.findall(r"<figure[^>]*>\s*<h2>([^<]+)</h2>", page)


def test_page_has_the_figures_that_its_trials_are_enough_for() -> None:
    assert _titles(render(_result(1))) == ["On the way"]
    whole = ["History: auc", "Parallel coordinates", "Importance", "On the way"]
    assert _titles(render(_result(12))) == whole
    several = _titles(render(_result(12, two=True)))
    assert several[:3] == ["History: auc", "History: size", "Pareto front"]
    failed = render(_result(4, failing=True))
    assert _titles(failed) == [] and "No trial has come to a value." in failed


def test_page_says_what_became_of_each_trial_in_short_numbers() -> None:
    page = render(_result(12))
    assert "an earlier attempt: node7 is lost" in page and "went on from trial 0" in page
    rows = page.partition("<tbody>")[2].partition("</tbody>")[0]
    assert not re.search(r"rate=[\d.e-]{10,}", rows)
    assert "on=true" in rows and "filters=16,32" in rows
    assert "of 1 trial," in render(_result(1))
    assert "&lt;boom&gt;" in render(_result(2, failing=True))


def test_best_trial_of_hundreds_is_in_each_figure_and_the_rest_is_counted() -> None:
    result = _result(500)
    page = render(result)
    assert page.count("<tr>") == 201 and "300 more are in report.json" in page
    (best,) = result.best
    assert f"what {150 + (best < 350)} trials reported" in page
    first = page.partition("Parallel coordinates")[2].partition("</figcaption>")[0]
    assert "zeta, rate" in first, "the most important parameters come first"


@pytest.mark.parametrize(
    ("name", "label"),
    [("rate", "rate"), ("filters[0]", "filte… 0"), ("activation", "activat…"), ("k[12]", "k 12")],
)
def test_column_is_labelled_within_its_width(name: str, label: str) -> None:
    assert _label(name) == label and len(label) <= 8
