"""``fairlead bench peers``: training by fairlead and by other libraries."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.base.errors import ExitCode, FairleadError, Finding, fail
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.base.progress import Progress
from fairlead.base.serde import to_json
from fairlead.base.suggest import suggest
from fairlead.cli import options
from fairlead.cli.bench_shared import (
    between,
    dry_run_option,
    fresh,
    load,
    machine,
    now,
    output_option,
    ranks_option,
    told_plan,
    watchdog_option,
)
from fairlead.cli.screen import json_option, print_json, progress, table
from fairlead.cli.within import within
from fairlead.launch import unpack
from fairlead.launch.request import Asked
from fairlead.launchers.model import Shape
from fairlead.perf.bench import peers as catalogue
from fairlead.session.model import Prepared
from fairlead.session.prepare import prepare, refuse

if TYPE_CHECKING:
    from fairlead.ml.train.host import Runner
    from fairlead.perf.bench.launches import PeersWish
    from fairlead.perf.bench.results import Estimate, PeersBench

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


@click.command(
    "peers", epilog=PEERS_EPILOG, short_help="Training by fairlead and by other libraries."
)
@click.argument("model", default="hepcnn", metavar="[MODEL]", callback=_models)
@ranks_option
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
@output_option
@watchdog_option
@dry_run_option
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
    from fairlead.ml.train.session_runner import runner
    from fairlead.perf.bench import launches as host
    from fairlead.perf.bench import summary
    from fairlead.perf.bench.picture import peers_picture
    from fairlead.perf.bench.results import PEERS_SCHEMA, SCHEMA_VERSION, Outcome, PeersBench
    from fairlead.perf.draw.pages import require_tools
    from fairlead.perf.records import documents

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
        return told_plan(
            "bench-peers", list(ready.values()), [plan, *listed, f"result in {output}"], as_json
        )
    begun, clock, busy = now(), time.monotonic(), load()
    output.mkdir(parents=True, exist_ok=True)
    log = fresh(output / "ranks.log")
    runners: dict[str, Runner | Finding] = dict(refused)
    for recipe, prepared in ready.items():
        unpack.ensure(prepared.plan, cache_dir(), bars)
        runners[recipe] = runner(prepared, log, lambda proof: None, watchdog)
    found = host.measure(wish, runners, bars)
    rows = summary.results(wish, found)
    hosts = dict.fromkeys(h for row in rows for one in row.launches if one for h in one.hosts)
    first = next(iter(ready.values()))
    result = PeersBench(
        begun=begun,
        seconds=time.monotonic() - clock,
        command=shlex.join(["fairlead", *sys.argv[1:]]),
        machine=machine(first, tuple(hosts), busy),
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
        stream.write(peers_picture(result))
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
    from fairlead.perf.draw.wording import count

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
        f" {count(result.ranks, 'rank')}, {count(result.rounds, 'round')}"
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
    return number.format(seen.value * scale) + unit + between(low, high, number)
