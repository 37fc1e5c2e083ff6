"""Puts a report on one page that needs nothing else, and beside it as JSON."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from fairlead import __version__
from fairlead.findings import fail
from fairlead.paths import atomic_write
from fairlead.report.model import ProofRow, Report
from fairlead.report.verdict import judge
from fairlead.serial import to_json
from fairlead.train.host import TrainResult

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
    page, data = folder / "report.html", folder / "report.json"
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
            "auc": report.training.auc,
        }
    with atomic_write(data, "w") as stream:
        json.dump(payload, stream, indent=2)
    with atomic_write(page, "w") as stream:
        stream.write(text)
    return page, data


def require_tools(*names: str) -> None:
    """Says at once, not after an hour of training, that a report could not be drawn.

    Args:
        names: packages that it takes; by default matplotlib and jinja2.
    Raises:
        FairleadError: one of them is not installed.
    """
    for name in names or ("matplotlib", "jinja2"):
        if importlib.util.find_spec(name) is None:
            raise fail(
                "the report cannot be drawn",
                where="fairlead.report",
                why=f"{name} is not installed",
                remedy="pip install 'fairlead[report]'",
                check="report-extra",
            )


def render(report: Report) -> str:
    """The HTML page.

    Raises:
        FairleadError: matplotlib or jinja2 is not installed.
    """
    require_tools()
    import jinja2

    figures = _figures(report.training) if report.training else ()
    template = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    shown = _shown(report.proof)
    return environment.from_string(template).render(
        report=report,
        verdict=judge(report),
        figures=figures,
        numbers=_numbers(report.training) if report.training else (),
        shares=_shares(report.training) if report.training else (),
        rows=shown,
        rows_hidden=len(report.proof) - len(shown),
        fairlead_version=__version__,
    )


def _shown(rows: tuple[ProofRow, ...]) -> tuple[ProofRow, ...]:
    """As many ranks as one can read, those that are wrong first."""
    return tuple(sorted(rows, key=lambda row: (row.planned_ok, row.rank))[:_ROWS_SHOWN])


def _numbers(training: TrainResult) -> tuple[Number, ...]:
    speed = training.all.speed
    ranks = f"on {training.all.ranks} rank{'s' if training.all.ranks > 1 else ''}"
    numbers = [
        Number(f"{training.auc:.3f}", "AUC", f"linear model {training.baseline.auc:.3f}"),
        Number(f"{speed.samples_per_s:.0f}", "samples/s", ranks),
    ]
    if training.one is not None:
        alone = f"{training.one.speed.samples_per_s:.0f} samples/s on 1 rank"
        numbers.append(Number(f"{training.efficiency:.0%}", "of ideal", alone))
    return tuple(numbers)


def _figures(training: TrainResult) -> tuple[Figure, ...]:
    from fairlead.report import plots

    everyone, points = training.all, training.all.loss
    smooth = sum(point.loss for point in points[-11:]) / len(points[-11:])
    scaling = f"{everyone.speed.samples_per_s:.0f} samples/s on {everyone.ranks} ranks"
    if training.one is not None:
        scaling += (
            f", {training.one.speed.samples_per_s:.0f} on 1: {training.efficiency:.0%} of ideal,"
            f" each rank with a batch of {everyone.batch} and {everyone.threads}"
            f" thread{'s' if everyone.threads > 1 else ''}"
        )
        if training.efficiency > 1.02:
            scaling += "; more than ideal means that other work slowed the machine on 1 rank"
    return (
        Figure("Speed", scaling, plots.scaling(training)),
        Figure(
            "Signal from background",
            f"AUC {training.auc:.3f} against {training.baseline.auc:.3f} of a linear model on the"
            f" same {training.baseline.val:,} held-out events",
            plots.auc_bars(training),
        ),
        Figure(
            "Loss",
            f"from {points[0].loss:.2f} to {smooth:.2f} in {len(points)} steps of"
            f" {everyone.batch * everyone.ranks} events; faint: each step",
            plots.loss_curve(training),
        ),
        Figure(
            "ROC",
            "how much signal is kept for how much background, held-out events",
            plots.roc_curve(training),
        ),
    )


def _shares(training: TrainResult) -> tuple[Share, ...]:
    speed = training.all.speed
    parts = (
        ("compute", speed.compute_s),
        ("gradients over MPI", speed.communicate_s),
        ("waiting for other ranks", speed.wait_s),
        ("input", speed.input_s),
    )
    whole = sum(seconds for _, seconds in parts)
    return tuple(Share(name, 1000 * s, 100 * s / whole) for name, s in parts)
