"""``fairlead bench``: messages by plain MPI and ``fairlead.comm``; training beside other libraries."""

from __future__ import annotations

import datetime
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead import unpacked
from fairlead.bench import catalogue
from fairlead.cli import options, show
from fairlead.cli.screen import json_option, print_json, progress, table
from fairlead.cli.within import within
from fairlead.findings import ExitCode, FairleadError, Finding, fail
from fairlead.launcher.model import Shape
from fairlead.launcher.request import Asked
from fairlead.paths import atomic_write, cache_dir
from fairlead.progress import Progress
from fairlead.serial import to_json
from fairlead.session import Prepared, prepare, refuse
from fairlead.suggest import suggest

if TYPE_CHECKING:
    from fairlead.bench.host import PeersWish
    from fairlead.bench.model import CollectivesBench, Estimate, Machine, PeersBench
    from fairlead.train.host import Runner

PEERS_EPILOG = """\b
Examples:
  fairlead bench peers --quick
  fairlead bench peers hepcnn -n 2 -o peers
  fairlead bench peers resnet50 -n 16 --peers horovod-tuned,ddp,ps-4
  fairlead bench peers cosmoflow -n 8 --image pytorch=/images/torch.sif --json

\b
Exit codes: 0 all that could be run gave right answers; 1 a peer failed, or its answers were wrong;
as of `fairlead run` where no peer could be launched.
"""
COLLECTIVES_EPILOG = """\b
Examples:
  fairlead bench collectives
  fairlead bench collectives tensorflow -n 4 --sizes 4,65536,16777216
  fairlead bench collectives mpi-base -n 64 --launcher srun -o messages

\b
Exit codes: 0 every answer was right; 1 one was wrong; as of `fairlead run` where nothing could be
launched.
"""
_output = click.option(
    "-o",
    "--output",
    default="fairlead-bench",
    show_default=True,
    help="Folder for what is kept.",
    type=click.Path(file_okay=False, path_type=Path),
)
_ranks = click.option(
    "-n", "--ranks", default=2, show_default=True, type=click.IntRange(2), help="Ranks to start."
)
_watchdog = click.option(
    "--watchdog",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Longest time until every rank has reported.  [default: the site's, 30]",
)
_dry_run = click.option(
    "--dry-run", is_flag=True, help="Say what would be measured, and launch nothing."
)


@click.group(short_help="Benchmarks: messages, and training beside other libraries.")
def bench() -> None:
    """Benchmarks whose answers are checked.

    \b
    fairlead bench collectives      messages by plain MPI and by fairlead.comm
    fairlead bench peers            training beside Horovod, torch DDP and TensorFlow's own
    """


def _sizes(
    context: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Bytes of messages, e.g. ``4,65536``."""
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    if not all(word.isdigit() and 4 <= int(word) <= 1 << 32 for word in words):
        raise click.BadParameter(f"{value!r} is no list of sizes from 4 B on; write e.g. 4,65536")
    return tuple(sorted({int(word) for word in words}))


@bench.command(epilog=COLLECTIVES_EPILOG, short_help="Messages by plain MPI and by fairlead.comm.")
@click.argument("image", default="mpi-base", metavar="[IMAGE]")
@_ranks
@options.nodes_options
@click.option(
    "--sizes", callback=_sizes, metavar="BYTES,…", help="Of the messages.  [default: 4 B to 64 MiB]"
)
@click.option(
    "--repeats", default=10, show_default=True, type=click.IntRange(1), help="Samples of each size."
)
@click.option(
    "--limit",
    default=120.0,
    show_default=True,
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Of the whole; what there is no time for is listed.",
)
@options.choice_options
@_output
@_watchdog
@_dry_run
@json_option
def collectives(
    image: str,
    ranks: int,
    asked: Asked,
    sizes: tuple[int, ...] | None,
    repeats: int,
    limit: float,
    planning: options.Planning,
    output: Path,
    watchdog: float | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Ping-pong, allreduce and broadcast over sizes in IMAGE, by plain MPI and by fairlead.comm.

    The launch is planned, checked and proved as by `fairlead run`. Every answer is checked. Without IMAGE,
    `mpi-base` is taken.
    """
    from fairlead.bench import collectives as messages
    from fairlead.bench.model import COLLECTIVES_SCHEMA, SCHEMA_VERSION, CollectivesBench
    from fairlead.report.write import require_tools
    from fairlead.train.session_runner import runner
    from fairlead.validate import documents, sweeps

    output, bars = output.absolute(), progress(as_json)
    shape, _ = within(replace(asked, ranks=ranks), planning, dry_run=dry_run)
    request = planning.request(ranks, shape=shape)
    prepared = prepare(image, planning.choices, request, progress=bars)
    require_tools("numpy")
    if prepared.refused:
        raise refuse(prepared)
    sizes = sizes or sweeps.SIZES
    if dry_run:
        steps = [
            f"{', '.join(sweeps.OPERATIONS)} of {len(sizes)} sizes on {ranks} ranks, {repeats} samples each",
            f"at most {limit:g} s; result in {output}",
        ]
        return _told_plan("bench-collectives", [prepared], steps, as_json)
    begun, clock, load = _now(), time.monotonic(), _load()
    output.mkdir(parents=True, exist_ok=True)
    unpacked.ensure(prepared.plan, cache_dir(), bars)
    launcher = runner(prepared, _fresh(output / "ranks.log"), lambda proof: None, watchdog)
    settings = sweeps.Settings(
        "", sizes=sizes, through=("mpi", "comm"), repeats=repeats, limit_s=limit
    )
    document = messages.measure(launcher, ranks, output / "run", settings, bars)
    hosts = tuple(dict.fromkeys(document["hosts"]))
    result = CollectivesBench(
        begun=begun,
        seconds=time.monotonic() - clock,
        command=shlex.join(["fairlead", *sys.argv[1:]]),
        machine=_machine(prepared, hosts, load),
        image=image,
        ranks=ranks,
        backend=document["backend"],
        crowded=document["crowded"],
        rows=messages.rows(document),
        skipped=messages.skipped(document),
        wrong=document["wrong"],
    )
    kept = output / "bench-collectives.json"
    documents.write(kept, result, COLLECTIVES_SCHEMA, SCHEMA_VERSION)
    if as_json:
        print_json("bench-collectives", to_json(result))
    else:
        click.echo("\n" + collectives_text(result) + f"\n\nkept: {kept}")
    return ExitCode.FAILED if result.wrong else ExitCode.DONE


def collectives_text(result: CollectivesBench) -> str:
    """A line a size and operation: plain MPI, `fairlead.comm`, and how many times as long it takes."""
    from fairlead.report.words import amount, size

    by_point = {(r.operation, r.ranks, r.bytes, r.through): r for r in result.rows}
    lines = []
    for row in result.rows:
        if row.through != "mpi":
            continue
        own = by_point.get((row.operation, row.ranks, row.bytes, "comm"))
        pair = row.operation == "pingpong"
        where = f"ranks {' - '.join(map(str, row.ranks))}" if pair else f"{len(row.ranks)} ranks"
        wrong = row.wrong + (own.wrong if own else 0)
        lines.append(
            (
                f"{row.operation}, {where}",
                size(row.bytes),
                amount(row.median, "s"),
                amount(own.median, "s") if own else "",
                f"{own.times:.2f}{_between(own.times_low, own.times_high)}"
                if own and own.times
                else "",
                f"{wrong} WRONG" if wrong else "right",
            )
        )
    head = ("", "bytes", "plain MPI", "fairlead.comm", "times plain MPI [95 %]", "answers")
    notes = [f"fairlead.comm by {result.backend}"]
    if result.crowded:
        notes.append("ranks shared cores: times say little")
    notes += [f"no time for {words}; give it with --limit" for words in result.skipped]
    return "\n".join([table(lines, head), "", *notes])


def _models(context: click.Context, param: click.Parameter, value: str) -> str:
    if value not in catalogue.MODELS:
        raise click.BadParameter(f"no model `{value}`. {suggest(value, catalogue.MODELS)}")
    return value


def _peers(
    context: click.Context, param: click.Parameter, value: str | None
) -> tuple[catalogue.Peer, ...]:
    names = None if value is None else [word.strip() for word in value.split(",")]
    return catalogue.chosen(names)


def _images(
    context: click.Context, param: click.Parameter, values: Sequence[str]
) -> dict[str, str]:
    """``RECIPE=IMAGE``, for recipes that peers are run in."""
    recipes = sorted({peer.recipe for peer in catalogue.PEERS})
    found = {}
    for value in values:
        recipe, equals, image = value.partition("=")
        if not equals or not image or recipe not in recipes:
            raise click.BadParameter(
                f"{value!r}: write RECIPE=IMAGE with one of {', '.join(recipes)}"
            )
        found[recipe] = image
    return found


@bench.command(epilog=PEERS_EPILOG, short_help="Training by fairlead and by other libraries.")
@click.argument("model", default="hepcnn", metavar="[MODEL]", callback=_models)
@_ranks
@options.nodes_options
@click.option(
    "--peers",
    callback=_peers,
    metavar="NAME,…",
    help=f"Some of {', '.join(catalogue.NAMES)}; ps-N has N servers.  [default: all]",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Launches of each peer; six are the fewest with a 95 % interval.  [default: 6]",
)
@click.option(
    "--blocks", type=click.IntRange(1), help="Turns with no communication a launch.  [default: 4]"
)
@click.option("--steps", type=click.IntRange(1), help="Timed steps a turn.  [default: 3]")
@click.option(
    "--quick", is_flag=True, help="Tiny inputs and two rounds: whether all works, not how fast."
)
@click.option(
    "--limit",
    default=300.0,
    show_default=True,
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Of one launch.",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    callback=_images,
    metavar="RECIPE=IMAGE",
    help="An image in the place of that recipe's. Repeatable.",
)
@options.choice_options
@_output
@_watchdog
@_dry_run
@json_option
def peers(
    model: str,
    ranks: int,
    asked: Asked,
    peers: tuple[catalogue.Peer, ...],
    rounds: int | None,
    blocks: int | None,
    steps: int | None,
    quick: bool,
    limit: float,
    images: Mapping[str, str],
    planning: options.Planning,
    output: Path,
    watchdog: float | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Train the same network by fairlead, Horovod, torch DDP and TensorFlow's own, in turns.

    MODEL is hepcnn (the default), cosmoflow or resnet50. Every launch also takes steps without communication, in
    turns with the others: their ratio is the step efficiency. The first means are held against MPI's,
    the weights of all ranks against each other. A peer whose image is not built is listed as not run.
    """
    from fairlead.bench import host, picture, summary
    from fairlead.bench.model import PEERS_SCHEMA, SCHEMA_VERSION, Outcome, PeersBench
    from fairlead.report.write import require_tools
    from fairlead.train.session_runner import runner
    from fairlead.validate import documents

    output, bars = output.absolute(), progress(as_json)
    require_tools("numpy")
    wish = host.PeersWish(
        out=output / "run",
        model=model,
        peers=peers,
        ranks=ranks,
        size="tiny" if quick else "full",
        rounds=rounds or (2 if quick else 6),
        blocks=blocks or (2 if quick else 4),
        steps=steps or (2 if quick else 3),
        limit_s=limit,
    )
    shape, _ = within(replace(asked, ranks=ranks), planning, dry_run=dry_run)
    ready, refused = _prepared(wish, images, planning, shape, bars)
    if dry_run:
        listed = [
            f"{p.title}: "
            + (f"not run, {refused[p.recipe].remedy}" if p.recipe in refused else p.recipe)
            for p in peers
        ]
        plan = f"{wish.rounds} rounds of {wish.blocks} x {wish.steps} steps on {ranks} ranks"
        return _told_plan(
            "bench-peers", list(ready.values()), [plan, *listed, f"result in {output}"], as_json
        )
    begun, clock, load = _now(), time.monotonic(), _load()
    output.mkdir(parents=True, exist_ok=True)
    log = _fresh(output / "ranks.log")
    runners: dict[str, Runner | Finding] = dict(refused)
    for recipe, prepared in ready.items():
        unpacked.ensure(prepared.plan, cache_dir(), bars)
        runners[recipe] = runner(prepared, log, lambda proof: None, watchdog)
    found = host.measure(wish, runners, bars)
    rows = summary.results(wish, found)
    hosts = dict.fromkeys(h for row in rows for one in row.launches if one for h in one.hosts)
    first = next(iter(ready.values()))
    result = PeersBench(
        begun=begun,
        seconds=time.monotonic() - clock,
        command=shlex.join(["fairlead", *sys.argv[1:]]),
        machine=_machine(first, tuple(hosts), load),
        model=model,
        title=wish.task.name,
        image=wish.task.image,
        weights=wish.task.weights,
        batch=wish.task.batch,
        size=wish.size,
        ranks=ranks,
        rounds=wish.rounds,
        blocks=wish.blocks,
        steps=wish.steps,
        peers=rows,
    )
    kept, drawn = output / "bench-peers.json", output / "bench-peers.svg"
    documents.write(kept, result, PEERS_SCHEMA, SCHEMA_VERSION)
    with atomic_write(drawn, "w") as stream:
        stream.write(picture.picture(result))
    if as_json:
        print_json("bench-peers", to_json(result))
    else:
        click.echo("\n" + peers_text(result) + f"\n\nkept: {kept}\n      {drawn}")
    outcomes = {row.outcome for row in rows}
    bad = outcomes & {Outcome.WRONG, Outcome.FAILED} or Outcome.RIGHT not in outcomes
    return ExitCode.FAILED if bad else ExitCode.DONE


def _prepared(
    wish: PeersWish,
    images: Mapping[str, str],
    planning: options.Planning,
    shape: Shape,
    bars: Progress,
) -> tuple[dict[str, Prepared], dict[str, Finding]]:
    """By recipe: what can be launched, and why the others cannot.

    Raises:
        FairleadError: none can.
    """
    ready: dict[str, Prepared] = {}
    refused: dict[str, Finding] = {}
    errors = []
    for recipe in dict.fromkeys(peer.recipe for peer in wish.peers):
        try:
            request = planning.request(wish.ranks, shape=shape)
            one = prepare(images.get(recipe, recipe), planning.choices, request, progress=bars)
            if one.refused:
                raise refuse(one)
            ready[recipe] = one
        except FairleadError as exc:
            refused[recipe] = exc.findings[0]
            errors.append(exc)
    if not ready:
        raise fail(
            "no peer can be run",
            where=", ".join(refused),
            why="; ".join(one.what for one in refused.values()),
            remedy=errors[0].findings[0].remedy,
            check="bench-no-peer",
            code=errors[0].code,
        )
    return ready, refused


def peers_text(result: PeersBench) -> str:
    """A line a peer, the fastest first; then what is not well, with the command that goes on."""
    lines = [
        (
            row.title,
            _estimate(row.samples_per_s, "{:.3g}"),
            _estimate(row.efficiency, "{:.0f} %", 100),
            _estimate(row.of_alone, "{:.0f} %", 100),
            _estimate(row.fairlead_times, "{:.2f} x"),
            row.outcome.value if row.outcome.value in ("right", "not run") else row.outcome.value.upper(),
        )
        for row in result.peers
    ]  # fmt: skip
    head = (
        "",
        "samples/s",
        "of no communication",
        f"of {result.ranks} x one process",
        "fairlead is",
        "answers",
    )
    size = "x".join(map(str, result.image))
    title = (
        f"{result.title} on {size}, {result.batch} samples a rank, {result.weights:,} weights,"
        f" {result.ranks} ranks, {result.rounds} rounds"
    )
    notes = []
    if result.size == "tiny":
        notes.append("tiny inputs: this shows that all works, not how fast it is")
    if any(one and one.crowded for row in result.peers for one in row.launches):
        notes.append("ranks shared cores: they take turns as well as communicate")
    notes.append("[] is the interval of the median over rounds, from five rounds on")
    for row in result.peers:
        if row.why:
            notes.append(f"{row.outcome.value}: {row.title}: {row.why}\n  next: {row.next}")
    return "\n".join([title, "", table(lines, head, width=0), "", *notes])


def _estimate(seen: Estimate | None, form: str, scale: float = 1.0) -> str:
    if seen is None:
        return ""
    unit = form.partition("}")[2]
    number = form.removesuffix(unit)
    low = None if seen.low is None else seen.low * scale
    high = None if seen.high is None else seen.high * scale
    return number.format(seen.value * scale) + unit + _between(low, high, number)


def _between(low: float | None, high: float | None, form: str = "{:.2f}") -> str:
    if low is None or high is None:
        return ""
    return f" [{form.format(low)}, {form.format(high)}]"


def _told_plan(kind: str, ready: list[Prepared], steps: list[str], as_json: bool) -> int:
    if as_json:
        plans = [show.prepared_json(one) for one in ready]
        print_json(f"{kind}-plan", {"plans": plans, "steps": steps, "dry_run": True})
    else:
        swaps = [f"{one.image.name}: {show.swap_line(one.plan)}" for one in ready]
        click.echo("\n".join([*swaps, *steps]))
    return ExitCode.DONE


def _machine(prepared: Prepared, hosts: tuple[str, ...], load: float | None) -> Machine:
    from fairlead.bench.model import Machine
    from fairlead.report.compose import facts

    cores = len(os.sched_getaffinity(0))
    return Machine(prepared.plan.site.name, hosts, cores, load, facts(prepared))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).astimezone().isoformat(timespec="seconds")


def _load() -> float | None:
    from fairlead.validate import chain

    return chain.load()


def _fresh(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path
