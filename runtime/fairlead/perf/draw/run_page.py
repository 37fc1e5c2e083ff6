"""Puts a report on one page that needs nothing else, and beside it as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fairlead import __version__
from fairlead.base.paths import atomic_write
from fairlead.base.serde import to_json
from fairlead.ml.train.result import TrainResult, score_name
from fairlead.perf.draw.claims import judge
from fairlead.perf.draw.figures import Bar, split
from fairlead.perf.draw.pages import page, require_tools
from fairlead.perf.draw.run_report import ProofRow, Report
from fairlead.perf.draw.wording import percent

SCHEMA = "fairlead/report"
SCHEMA_VERSION = 1
_ROWS_SHOWN = 64


@dataclass(frozen=True)
class Figure:
    """One picture: its SVG, and what it shows in words."""

    title: str
    words: str
    svg: str


@dataclass(frozen=True)
class Number:
    """One figure to see from afar."""

    value: str
    unit: str
    beside: str


@dataclass(frozen=True)
class Share:
    """A part of the median training step."""

    name: str
    milliseconds: float
    percent: float


def write_report(folder: Path, report: Report) -> tuple[Path, Path]:
    """Writes ``report.html`` and ``report.json`` into ``folder``; returns their paths.

    Raises:
        FairleadError: matplotlib or jinja2 is not installed.
        OSError: the folder cannot be written.
    """
    html, data = folder / "report.html", folder / "report.json"
    verdict = judge(report)
    text = render(report)
    payload = {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "fairlead": __version__,
        "verdict": to_json(verdict),
        **to_json(report),
    }
    if report.training is not None:
        payload["training"] |= {
            "efficiency": report.training.efficiency,
            "scores": report.training.scores,
        }
    with atomic_write(data, "w") as stream:
        json.dump(payload, stream, indent=2)
    with atomic_write(html, "w") as stream:
        stream.write(text)
    return html, data


def render(report: Report) -> str:
    """The HTML page.

    Raises:
        FairleadError: matplotlib or jinja2 is not installed.
    """
    require_tools()
    figures = _figures(report.training) if report.training else ()
    shown = _shown(report.proof)
    return page(
        "run",
        report=report,
        verdict=judge(report),
        figures=figures,
        numbers=_numbers(report.training) if report.training else (),
        shares=_shares(report.training) if report.training else (),
        bars=_bars(report.training) if report.training else (),
        rows=shown,
        rows_hidden=len(report.proof) - len(shown),
    )


def _shown(rows: tuple[ProofRow, ...]) -> tuple[ProofRow, ...]:
    """As many ranks as one can read, those that are wrong first."""
    return tuple(sorted(rows, key=lambda row: (row.planned_ok, row.rank))[:_ROWS_SHOWN])


def _numbers(training: TrainResult) -> tuple[Number, ...]:
    speed = training.all.speed
    ranks = f"on {training.all.ranks} rank{'s' if training.all.ranks > 1 else ''}"
    numbers = [
        Number(
            f"{training.scores[gate.metric]:.3f}",
            score_name(gate.metric),
            f"linear model {training.baseline.scores[gate.metric]:.3f}",
        )
        for gate in training.gates
    ]
    if speed is not None:
        numbers.append(Number(f"{speed.samples_per_s:.0f}", "samples/s", ranks))
    if training.one is not None and training.one.speed is not None:
        alone = f"{training.one.speed.samples_per_s:.0f} samples/s on 1 rank"
        numbers.append(Number(percent(training.efficiency), "of ideal", alone))
    return tuple(numbers)


def _figures(training: TrainResult) -> tuple[Figure, ...]:
    from fairlead.perf.draw import plots

    everyone, points, task = training.all, training.all.loss, training.task
    smooth = sum(point.loss for point in points[-11:]) / len(points[-11:])
    figures = []
    if everyone.speed is not None:
        figures.append(Figure("Speed", _scaling(training), plots.scaling(training)))
    for gate in training.gates:
        found, linear = training.scores[gate.metric], training.baseline.scores[gate.metric]
        figures.append(
            Figure(
                f"Held-out {score_name(gate.metric)}",
                f"{found:.3f} against {linear:.3f} of a linear model on the same"
                f" {training.baseline.val:,} {task.sample}s; wanted: {gate.words}",
                plots.score_bars(training, gate),
            )
        )
    figures.append(
        Figure(
            "Loss",
            f"from {points[0].loss:.2f} to {smooth:.2f} in {len(points)} steps of"
            f" {everyone.batch * everyone.ranks} {task.sample}s; faint: each step",
            plots.loss_curve(training),
        )
    )
    if everyone.evaluation is not None and everyone.evaluation.roc:
        figures.append(
            Figure(
                "ROC",
                "how much signal is kept for how much background, held-out events",
                plots.roc_curve(training),
            )
        )
    return tuple(figures)


def _scaling(training: TrainResult) -> str:
    """Speed on all ranks, on one, and what that says, in words."""
    everyone = training.all
    assert everyone.speed is not None  # asked before
    words = f"{everyone.speed.samples_per_s:.0f} samples/s on {everyone.ranks} ranks"
    if training.one is not None and training.one.speed is not None:
        words += (
            f", {training.one.speed.samples_per_s:.0f} on 1: {percent(training.efficiency)} of ideal,"
            f" each rank with a batch of {everyone.batch} and {everyone.threads}"
            f" thread{'s' if everyone.threads > 1 else ''}"
        )
        if training.efficiency > 1.02:
            words += "; more than ideal means that other work slowed the machine on 1 rank"
    return words


def _shares(training: TrainResult) -> tuple[Share, ...]:
    speed = training.all.speed
    if speed is None:
        return ()
    parts: tuple[tuple[str, float], ...] = (
        ("input", speed.input_s),
        ("forward", speed.forward_s),
        ("backward", max(speed.compute_s - speed.forward_s - speed.update_s, 0.0)),
        ("exposed communication", speed.communicate_s),
        ("update", speed.update_s),
        ("idle", speed.wait_s),
    )
    whole = sum(seconds for _, seconds in parts)
    return tuple(Share(name, 1000 * s, 100 * s / whole) for name, s in parts)


def _bars(training: TrainResult) -> tuple[Bar, ...]:
    """The median step of each rank, warm-up left out; of many ranks, of each node."""
    timed = (steps.after(training.all.warmup) for steps in training.all.steps)
    return split([steps for steps in timed if steps.input_s])
