"""``python -m benchmarks.peers [MODEL]``: training by fairlead and by other libraries."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from benchmarks.peers import catalogue, launches, show, summary
from benchmarks.peers.launches import PeersOptions
from benchmarks.peers.results import SCHEMA, SCHEMA_VERSION, Outcome, PeersBench
from benchmarks.result import IMPORTABLE, PACKAGE
from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.base.progress import Progress
from fairlead.base.serde import to_json
from fairlead.base.suggest import suggest
from fairlead.cli import options
from fairlead.cli.bench import RANKS, BenchFlags, fresh, machine, now, show_plan
from fairlead.cli.declare import SECONDS, argument, declared, option
from fairlead.cli.main import entry
from fairlead.cli.screen import print_json, progress
from fairlead.cli.within import within
from fairlead.launch import unpack
from fairlead.launchers.model import Shape
from fairlead.ml.train.runner import Runner, RunOutcome
from fairlead.ml.train.session_runner import runner
from fairlead.perf.measure import processors
from fairlead.perf.records import documents
from fairlead.session.model import Prepared
from fairlead.session.prepare import prepare, refuse

NAME = "python -m benchmarks.peers"
EPILOG = """\b
Examples:
  python -m benchmarks.peers --quick
  python -m benchmarks.peers hepcnn -n 2 -o peers
  python -m benchmarks.peers resnet50 -n 16 --peers horovod-tuned,ddp,ps-4
  python -m benchmarks.peers cosmoflow -n 8 --image pytorch=/images/torch.sif --json

\b
Exit codes: 0 every peer that ran gave right answers; 1 a peer failed, or its answers are wrong;
those of `fairlead run` if no peer could be launched.
"""


def _models(context: click.Context, param: click.Parameter, value: str) -> str:
    if value not in catalogue.MODELS:
        raise click.BadParameter(f"no model `{value}`. {suggest(value, catalogue.MODELS)}")
    return value


def _peers(
    context: click.Context, param: click.Parameter, value: str | None
) -> tuple[catalogue.Peer, ...]:
    names = None if value is None else [word.strip() for word in value.split(",")]
    return catalogue.select(names)


def _images(
    context: click.Context, param: click.Parameter, values: Sequence[str]
) -> dict[str, str]:
    """``RECIPE=IMAGE``, for recipes that peers are run in."""
    recipes = sorted({peer.recipe for peer in catalogue.PEERS})
    images = {}
    for value in values:
        recipe, equals, image = value.partition("=")
        if not equals or not image or recipe not in recipes:
            raise click.BadParameter(
                f"{value!r}: write RECIPE=IMAGE with one of {', '.join(recipes)}"
            )
        images[recipe] = image
    return images


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is measured.

    Attributes:
        rounds, blocks, steps: None for the default, which depends on ``quick``.
        images: by recipe, the image to take in its place.
    """

    peers: tuple[catalogue.Peer, ...] = option(
        "--peers NAME,…",
        f"Any of {', '.join(catalogue.NAMES)}; ps-N has N servers.  [default: all]",
        multiple=False,
        callback=_peers,
    )
    rounds: int | None = option(
        "--rounds", "Launches of each peer; a 95 % interval takes at least six.  [default: 6]"
    )
    blocks: int | None = option(
        "--blocks", "Rounds without communication per launch.  [default: 4]"
    )
    steps: int | None = option("--steps", "Timed steps per round.  [default: 3]")
    quick: bool = option(
        "--quick", "Tiny inputs and two rounds: tests that everything works, not how fast."
    )
    limit: float = option("--limit SECONDS", "Time limit of a launch.", default=300.0, type=SECONDS)
    images: Mapping[str, str] = option(
        "--image RECIPE=IMAGE",
        "Use this image instead of the recipe's. Repeatable.",
        multiple=True,
        callback=_images,
    )


@click.command(
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@declared
def peers(
    model: str = argument(default="hepcnn", metavar="[MODEL]", callback=_models),
    ranks: int = RANKS,
    *,
    asked: options.Nodes,
    wanted: Wanted,
    planning: options.Planning,
    flags: BenchFlags,
) -> int:
    """Train the same network with fairlead, Horovod, torch DDP and TensorFlow, in turns.

    MODEL is hepcnn (the default), cosmoflow or resnet50. Every launch alternates steps with and
    without communication; their ratio is the step efficiency. The first means are compared with
    MPI's, and the weights of all ranks with each other. A peer whose image is not built is listed as
    not run.
    """
    output, bars = flags.output.absolute(), progress(flags.as_json)
    scope = _scope(wanted, model, ranks, output)
    shape, _ = within(replace(asked, ranks=ranks), planning, dry_run=flags.dry_run)
    ready, refused = _prepared(scope, wanted.images, planning, shape, bars)
    if flags.dry_run:
        steps = _steps(scope, refused, output)
        return show_plan("bench-peers", list(ready.values()), steps, flags.as_json)
    begun, clock, busy = now(), time.monotonic(), processors.load()
    output.mkdir(parents=True, exist_ok=True)
    log = fresh(output / "ranks.log")
    runners: dict[str, Runner | Finding] = dict(refused)
    for recipe, prepared in ready.items():
        unpack.ensure(prepared.plan, cache_dir(), bars)
        runners[recipe] = _with_benchmarks(
            runner(prepared, log, lambda proof: None, flags.watchdog)
        )
    rows = summary.results(scope, launches.measure(scope, runners, bars))
    hosts = dict.fromkeys(h for row in rows for run in row.launches if run for h in run.hosts)
    result = PeersBench(
        begun=begun,
        seconds=time.monotonic() - clock,
        command=shlex.join([*NAME.split(), *sys.argv[1:]]),
        machine=machine(next(iter(ready.values())), tuple(hosts), busy),
        model=model,
        title=scope.task.name,
        image=scope.task.image,
        weights=scope.task.weights,
        batch=scope.task.batch,
        size=scope.size,
        ranks=ranks,
        rounds=scope.rounds,
        blocks=scope.blocks,
        steps=scope.steps,
        peers=rows,
    )
    _keep(result, output, flags.as_json)
    outcomes = {row.outcome for row in rows}
    bad = outcomes & {Outcome.WRONG, Outcome.FAILED} or Outcome.RIGHT not in outcomes
    return ExitCode.FAILED if bad else ExitCode.DONE


def _scope(wanted: Wanted, model: str, ranks: int, output: Path) -> PeersOptions:
    """What is measured."""
    return PeersOptions(
        out=output / "run",
        model=model,
        peers=wanted.peers,
        ranks=ranks,
        size="tiny" if wanted.quick else "full",
        rounds=wanted.rounds or (2 if wanted.quick else 6),
        blocks=wanted.blocks or (2 if wanted.quick else 4),
        steps=wanted.steps or (2 if wanted.quick else 3),
        limit_s=wanted.limit,
    )


def _steps(scope: PeersOptions, refused: Mapping[str, Finding], output: Path) -> list[str]:
    """What would be done, for a dry run."""
    rounds = f"{scope.rounds} rounds of {scope.blocks} x {scope.steps} steps on {scope.ranks} ranks"
    peers = [
        f"{peer.title}: "
        + (f"not run, {refused[peer.recipe].remedy}" if peer.recipe in refused else peer.recipe)
        for peer in scope.peers
    ]
    return [rounds, *peers, f"result in {output}"]


def _keep(result: PeersBench, output: Path, as_json: bool) -> None:
    """Write the document and the picture, and show the result."""
    document, picture = output / "bench-peers.json", output / "bench-peers.svg"
    documents.write(document, result, SCHEMA, SCHEMA_VERSION)
    with atomic_write(picture, "w") as stream:
        stream.write(show.picture(result))
    if as_json:
        print_json("bench-peers", to_json(result))
    else:
        click.echo("\n" + show.text(result) + f"\n\nkept: {document}\n      {picture}")


def _prepared(
    scope: PeersOptions,
    images: Mapping[str, str],
    planning: options.Planning,
    shape: Shape,
    bars: Progress,
) -> tuple[dict[str, Prepared], dict[str, Finding]]:
    """By recipe, what can be launched, and why the others cannot.

    Raises:
        FairleadError: none can.
    """
    ready: dict[str, Prepared] = {}
    refused: dict[str, Finding] = {}
    errors = []
    for recipe in dict.fromkeys(peer.recipe for peer in scope.peers):
        try:
            request = planning.request(scope.ranks, shape=shape)
            image = images.get(recipe, recipe)
            prepared = prepare(image, planning.choices, request, progress=bars)
            if prepared.refused:
                raise refuse(prepared)
            ready[recipe] = prepared
        except FairleadError as exc:
            refused[recipe] = exc.findings[0]
            errors.append(exc)
    if not ready:
        raise FairleadError(
            Finding(
                Severity.ERROR,
                "no peer can be run",
                ", ".join(refused),
                "; ".join(finding.what for finding in refused.values()),
                errors[0].findings[0].remedy,
                "bench-no-peer",
            ),
            errors[0].code,
        )
    return ready, refused


def _with_benchmarks(run: Runner) -> Runner:
    """``run`` with this package in the container: an image has fairlead's wheel, which is without benchmarks."""

    def launch(ranks: int, command: Sequence[str], binds: Sequence[Path]) -> RunOutcome:
        return run(ranks, [*IMPORTABLE, *command], [*binds, PACKAGE])

    return launch


if __name__ == "__main__":
    entry(command=peers, name=NAME)
