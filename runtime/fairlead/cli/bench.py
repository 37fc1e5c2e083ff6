"""``fairlead bench``: messages by plain MPI and ``fairlead.comm``; what other benchmarks of launches share."""

from __future__ import annotations

import datetime
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.base.errors import ExitCode
from fairlead.base.paths import cache_dir
from fairlead.base.serde import to_json
from fairlead.cli import options, show
from fairlead.cli.declare import FOLDER, JSON, SECONDS, argument, declared, option
from fairlead.cli.group import Group
from fairlead.cli.screen import answer, table
from fairlead.cli.within import plan_launch
from fairlead.launch import unpack
from fairlead.session.model import Prepared
from fairlead.session.prepare import refuse

if TYPE_CHECKING:
    from fairlead.perf.bench import CollectivesBench, Machine

COLLECTIVES_EPILOG = """\b
Examples:
  fairlead bench collectives
  fairlead bench collectives tensorflow -n 4 --sizes 4,65536,16777216
  fairlead bench collectives mpi-base -n 64 --launcher srun -o messages

\b
Exit codes: 0 every answer is right; 1 an answer is wrong; those of `fairlead run` if nothing could
be launched.
"""


RANKS = option("-n -np --ranks", "Ranks to start.", default=2, type=click.IntRange(2))


@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    """What every benchmark of launches can be asked for."""

    output: Path = option("-o --output", "Output folder.", default="fairlead-bench", type=FOLDER)
    watchdog: float | None = options.WATCHDOG
    dry_run: bool = option("--dry-run", "Print what would be measured, and launch nothing.")
    as_json: bool = JSON
    timeline_file = ""  # none is offered


@click.group(cls=Group)
def bench() -> None:
    """Benchmarks that check every answer.

    \b
    fairlead bench collectives      messages with plain MPI and fairlead.comm
    """


def _sizes(
    context: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Bytes of messages, e.g. ``4,65536``."""
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    if not all(word.isdigit() and 4 <= int(word) <= 1 << 32 for word in words):
        raise click.BadParameter(
            f"{value!r} is not a list of sizes of at least 4 B; write e.g. 4,65536"
        )
    return tuple(sorted({int(word) for word in words}))


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What ``fairlead bench collectives`` measures."""

    sizes: tuple[int, ...] | None = option(
        "--sizes BYTES,…", "Message sizes.  [default: 4 B to 64 MiB]", callback=_sizes
    )
    repeats: int = option("--repeats", "Samples per size.", default=10)
    limit: float = option(
        "--limit SECONDS",
        "Time limit of the whole benchmark; what it skips is listed.",
        default=120.0,
        type=SECONDS,
    )


@bench.command(
    epilog=COLLECTIVES_EPILOG, short_help="Benchmark messages with plain MPI and fairlead.comm."
)
@declared
def collectives(
    image: str = argument(default="mpi-base", metavar="[IMAGE]"),
    ranks: int = RANKS,
    *,
    asked: options.Nodes,
    wanted: Wanted,
    planning: options.Planning,
    flags: BenchFlags,
) -> int:
    """Measure ping-pong, allreduce and broadcast over message sizes, with plain MPI and fairlead.comm.

    The launch is planned, checked and proved as by `fairlead run`, and every answer is checked.
    IMAGE defaults to `mpi-base`.
    """
    from fairlead.ml.train.session_runner import runner
    from fairlead.perf import bench as messages
    from fairlead.perf.draw.pages import require_tools
    from fairlead.perf.measure import processors
    from fairlead.perf.measure.ranks import messages as sweeps
    from fairlead.perf.records import documents

    output = flags.output.absolute()
    ready = plan_launch(image, replace(asked, ranks=ranks), planning, flags)
    prepared, bars = ready.prepared, ready.progress
    require_tools("numpy")
    if prepared.refused:
        raise refuse(prepared)
    sizes = wanted.sizes or sweeps.SIZES
    if flags.dry_run:
        steps = [
            f"{', '.join(sweeps.OPERATIONS)} of {len(sizes)} sizes on {ranks} ranks, {wanted.repeats} samples each",
            f"at most {wanted.limit:g} s; result in {output}",
        ]
        return show_plan("bench-collectives", [prepared], steps, flags.as_json)
    begun, clock, busy = now(), time.monotonic(), processors.load()
    output.mkdir(parents=True, exist_ok=True)
    unpack.ensure(prepared.plan, cache_dir(), bars)
    launcher = runner(prepared, fresh(output / "ranks.log"), lambda proof: None, flags.watchdog)
    settings = sweeps.Settings(
        output / "run" / "messages.json",
        sizes=sizes,
        through=("mpi", "comm"),
        repeats=wanted.repeats,
        limit_s=wanted.limit,
    )
    document = messages.measure(launcher, ranks, settings, bars)
    hosts = tuple(dict.fromkeys(document["hosts"]))
    result = messages.CollectivesBench(
        begun=begun,
        seconds=time.monotonic() - clock,
        command=shlex.join(["fairlead", *sys.argv[1:]]),
        machine=machine(prepared, hosts, busy),
        image=image,
        ranks=ranks,
        backend=document["backend"],
        crowded=document["crowded"],
        rows=messages.rows(document),
        skipped=messages.skipped(document),
        wrong=document["wrong"],
    )
    path = output / "bench-collectives.json"
    documents.write(path, result, messages.SCHEMA, messages.SCHEMA_VERSION)
    text = f"\n{collectives_text(result)}\n\nkept: {path}"
    answer(flags.as_json, "bench-collectives", to_json(result), text)
    return ExitCode.FAILED if result.wrong else ExitCode.DONE


def collectives_text(result: CollectivesBench) -> str:
    """A line for each operation and size: plain MPI, `fairlead.comm`, and the ratio of their times."""
    from fairlead.perf.draw.wording import amount, size

    by_point = {(r.operation, r.ranks, r.bytes, r.through): r for r in result.rows}
    lines = []
    for row in result.rows:
        if row.through != "mpi":
            continue
        comm = by_point.get((row.operation, row.ranks, row.bytes, "comm"))
        pair = row.operation == "pingpong"
        where = f"ranks {' - '.join(map(str, row.ranks))}" if pair else f"{len(row.ranks)} ranks"
        wrong = row.wrong + (comm.wrong if comm else 0)
        lines.append(
            (
                f"{row.operation}, {where}",
                size(row.bytes),
                amount(row.median, "s"),
                amount(comm.median, "s") if comm else "",
                f"{comm.times:.2f}{between(comm.times_low, comm.times_high)}"
                if comm and comm.times
                else "",
                f"{wrong} WRONG" if wrong else "right",
            )
        )
    head = ("", "bytes", "plain MPI", "fairlead.comm", "times plain MPI [95 %]", "answers")
    notes = [f"fairlead.comm by {result.backend}"]
    if result.crowded:
        notes.append("ranks shared cores: times are not meaningful")
    notes += [f"no time for {words}; raise --limit" for words in result.skipped]
    return "\n".join([table(lines, head), "", *notes])


def between(low: float | None, high: float | None, form: str = "{:.2f}") -> str:
    """An interval, after a blank; empty where there is none."""
    if low is None or high is None:
        return ""
    return f" [{form.format(low)}, {form.format(high)}]"


def show_plan(kind: str, ready: Sequence[Prepared], steps: list[str], as_json: bool) -> int:
    """Show what a benchmark would do."""
    document = {"plans": list(map(show.prepared_json, ready)), "steps": steps, "dry_run": True}
    swaps = [f"{p.image.name}: {show.swap_line(p.plan)}" for p in ready]
    answer(as_json, f"{kind}-plan", document, "\n".join([*swaps, *steps]))
    return ExitCode.DONE


def machine(prepared: Prepared, hosts: tuple[str, ...], load: float | None) -> Machine:
    """The machine, for the document; ``load`` is from before the benchmark began."""
    from fairlead.perf.bench import Machine
    from fairlead.perf.draw.compose import facts

    cores = len(os.sched_getaffinity(0))
    return Machine(prepared.plan.site.name, hosts, cores, load, facts(prepared))


def now() -> str:
    """ISO 8601, with the zone."""
    return datetime.datetime.now(datetime.UTC).astimezone().isoformat(timespec="seconds")


def fresh(path: Path) -> Path:
    """The path, with what was there removed."""
    path.unlink(missing_ok=True)
    return path
