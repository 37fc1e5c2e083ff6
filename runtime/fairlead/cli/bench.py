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
from fairlead.cli.screen import json_option, print_json, progress, table
from fairlead.cli.within import within
from fairlead.launch import unpack
from fairlead.launch.request import Asked
from fairlead.session.model import Prepared
from fairlead.session.prepare import prepare, refuse

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


@dataclass(frozen=True)
class CollectivesFlags:
    """The options of ``fairlead bench collectives`` that no other group of options holds."""

    sizes: tuple[int, ...] | None
    repeats: int
    limit: float
    output: Path
    watchdog: float | None
    dry_run: bool
    as_json: bool


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
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would be measured, and launch nothing."
)


@click.group(short_help="Benchmark messages with plain MPI and fairlead.comm.")
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


@bench.command(
    epilog=COLLECTIVES_EPILOG, short_help="Benchmark messages with plain MPI and fairlead.comm."
)
@click.argument("image", default="mpi-base", metavar="[IMAGE]")
@ranks_option
@options.nodes_options
@click.option(
    "--sizes", callback=_sizes, metavar="BYTES,…", help="Message sizes.  [default: 4 B to 64 MiB]"
)
@click.option(
    "--repeats", default=10, show_default=True, type=click.IntRange(1), help="Samples per size."
)
@click.option(
    "--limit",
    default=120.0,
    show_default=True,
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Time limit of the whole benchmark; what it skips is listed.",
)
@options.choice_options
@output_option
@options.watchdog_option
@dry_run_option
@json_option
@options.collected(CollectivesFlags)
def collectives(
    image: str,
    ranks: int,
    asked: Asked,
    planning: options.Planning,
    flags: CollectivesFlags,
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

    output, bars = flags.output.absolute(), progress(flags.as_json)
    shape, _ = within(replace(asked, ranks=ranks), planning, dry_run=flags.dry_run)
    request = planning.request(ranks, shape=shape)
    prepared = prepare(image, planning.choices, request, progress=bars)
    require_tools("numpy")
    if prepared.refused:
        raise refuse(prepared)
    sizes = flags.sizes or sweeps.SIZES
    if flags.dry_run:
        steps = [
            f"{', '.join(sweeps.OPERATIONS)} of {len(sizes)} sizes on {ranks} ranks, {flags.repeats} samples each",
            f"at most {flags.limit:g} s; result in {output}",
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
        repeats=flags.repeats,
        limit_s=flags.limit,
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
    if flags.as_json:
        print_json("bench-collectives", to_json(result))
    else:
        click.echo("\n" + collectives_text(result) + f"\n\nkept: {path}")
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
    if as_json:
        plans = [show.prepared_json(prepared) for prepared in ready]
        print_json(f"{kind}-plan", {"plans": plans, "steps": steps, "dry_run": True})
    else:
        swaps = [f"{p.image.name}: {show.swap_line(p.plan)}" for p in ready]
        click.echo("\n".join([*swaps, *steps]))
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
