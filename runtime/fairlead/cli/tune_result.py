"""What ``fairlead tune`` shows while it runs, and what it leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from fairlead.base.errors import Finding
from fairlead.base.progress import Progress
from fairlead.cli.screen import print_json, say, table
from fairlead.session.model import Prepared
from fairlead.tune.page import PAGE, write_page
from fairlead.tune.passing import text
from fairlead.tune.result import (
    BEST,
    DATA,
    TuneResult,
    result_of,
    table_rows,
    write,
    write_best,
)
from fairlead.tune.study import Study
from fairlead.tune.target import Target
from fairlead.tune.tuner import Ended


@contextmanager
def shown(
    bars: Progress, study: Study, target: Target, *, quiet: bool
) -> Iterator[Callable[[Ended], None]]:
    """A stage that each trial that is over advances; on a terminal the bar shows the best, elsewhere a line each trial."""
    whole = study.trials_wanted
    with bars.stage(f"tune {target.title}", whole, "trials") as stage:
        stage.advance(sum(t.state in ("complete", "pruned", "failed") for t in study.trials()))
        lines = not (quiet or sys.stderr.isatty())

        def on_ended(ended: Ended) -> None:
            stage.advance(1)
            if lines:
                say(_line(ended))
            if best := study.best():
                stage.note(f"best: {_values(best[0].values)} (trial {best[0].number})")

        yield on_ended
        best, failed = study.best(), sum(t.state == "failed" for t in study.trials())
        words = (
            [f"best {_values(best[0].values)} in trial {best[0].number}"] if best else ["no value"]
        )
        stage.result(", ".join([*words, *([f"{failed} failed"] if failed else [])]))


def _line(ended: Ended) -> str:
    """A trial that is over, in a line."""
    claim, shown = (
        ended.claim,
        " ".join(f"{n}={text(v)}" for n, v in ended.claim.parameters.items()),
    )
    if ended.values is not None:
        how = ", ".join(f"{value:.6g}" for value in ended.values)
    else:
        how = "ended early" if ended.pruned else f"failed: {ended.why}"
    again = f", attempt {claim.attempt}" if claim.attempt > 1 else ""
    return f"trial {claim.number}{again}: {how} ({ended.seconds:.1f} s) {shown}"


def _values(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in values.items())


def written(folder: Path, study: Study, target: Target, prepared: Prepared) -> TuneResult:
    """Writes the reports, and the best trial or trials as files to repeat them from."""
    result = result_of(study, target, prepared)
    write(folder, result)
    write_page(folder, result)
    front = study.best()
    for place, trial in enumerate(front):
        name = BEST if place == 0 else f"best-{trial.number}.toml"
        write_best(folder / name, trial, target, prepared, study)
    return result


def show_result(
    result: TuneResult, folder: Path, findings: Sequence[Finding] = (), *, as_json: bool
) -> None:
    """The best trials, and where the rest is; findings of what was kept elsewhere."""
    if as_json:
        files = {"page": folder / PAGE, "report": folder / DATA, "best_file": folder / BEST}
        print_json("tune", {**files, "result": result, "findings": findings})
        return
    head = ("trial", *result.objectives, "parameters")
    click.echo(table(table_rows(result), head))
    counts = ", ".join(f"{count} {state}" for state, count in result.counts.items())
    click.echo(f"\n{counts}\nreport: {folder / PAGE}")
    if result.best:
        click.echo(f"repeat: fairlead train --from {folder / BEST}")
