"""What both benchmarks of ``fairlead bench`` share: options, the plan in words, the machine."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import click

from fairlead.base.errors import ExitCode
from fairlead.cli import show
from fairlead.cli.screen import print_json
from fairlead.perf.bench.results import Machine
from fairlead.session.model import Prepared

output_option = click.option(
    "-o",
    "--output",
    default="fairlead-bench",
    show_default=True,
    help="Output folder.",
    type=click.Path(file_okay=False, path_type=Path),
)
ranks_option = click.option(
    "-n", "--ranks", default=2, show_default=True, type=click.IntRange(2), help="Ranks to start."
)
watchdog_option = click.option(
    "--watchdog",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Time limit until every rank has reported.  [default: the site's, 30]",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would be measured, and launch nothing."
)


def between(low: float | None, high: float | None, form: str = "{:.2f}") -> str:
    if low is None or high is None:
        return ""
    return f" [{form.format(low)}, {form.format(high)}]"


def show_plan(kind: str, ready: list[Prepared], steps: list[str], as_json: bool) -> int:
    """Show what a benchmark would do."""
    if as_json:
        plans = [show.prepared_json(prepared) for prepared in ready]
        print_json(f"{kind}-plan", {"plans": plans, "steps": steps, "dry_run": True})
    else:
        swaps = [f"{p.image.name}: {show.swap_line(p.plan)}" for p in ready]
        click.echo("\n".join([*swaps, *steps]))
    return ExitCode.DONE


def machine(prepared: Prepared, hosts: tuple[str, ...], load: float | None) -> Machine:
    """The machine, for the document; ``load`` is from before the benchmark began."""
    from fairlead.perf.draw.compose import facts

    cores = len(os.sched_getaffinity(0))
    return Machine(prepared.plan.site.name, hosts, cores, load, facts(prepared))


def now() -> str:
    """ISO 8601, with the zone."""
    return datetime.datetime.now(datetime.UTC).astimezone().isoformat(timespec="seconds")


def load() -> float | None:
    """Runnable processes, mean of a minute; None where the system does not report it."""
    from fairlead.perf.measure import processors

    return processors.load()


def fresh(path: Path) -> Path:
    """The path, with what was there removed."""
    path.unlink(missing_ok=True)
    return path
