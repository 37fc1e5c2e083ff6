"""Puts a report on one page that needs nothing else, and as JSON."""

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
from fairlead.perf.draw.pages import Number, page, require_tools
from fairlead.perf.draw.run_report import ProofRow, Report
from fairlead.perf.draw.training_figures import figures
from fairlead.perf.draw.wording import percent

SCHEMA = "fairlead/report"
SCHEMA_VERSION = 1
_ROWS_SHOWN = 64


@dataclass(frozen=True)
class Share:
    """A part of the median training step."""

    name: str
    milliseconds: float
    percent: float


def write_report(folder: Path, report: Report) -> tuple[Path, Path]:
    """Writes ``report.html`` and ``report.json`` into ``folder``; returns their paths.

    Raises:
        FairleadError: jinja2 is not installed.
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
        FairleadError: jinja2 is not installed.
    """
    require_tools("jinja2", "numpy")
    drawn = figures(report.training) if report.training else ()
    shown = _shown(report.proof)
    return page(
        "run",
        report=report,
        verdict=judge(report),
        figures=drawn,
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
