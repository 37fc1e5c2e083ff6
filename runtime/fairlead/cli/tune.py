"""``fairlead tune``: a search over the parameters of a script or a model, each trial a proved launch."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fairlead.base.errors import ExitCode, fail
from fairlead.base.paths import cache_dir
from fairlead.base.suggest import suggest
from fairlead.cli import names, options, show
from fairlead.cli.declare import (
    FILE_HERE,
    FOLDER,
    FOLDER_HERE,
    JSON,
    SECONDS,
    argument,
    declared,
    option,
)
from fairlead.cli.run import announce
from fairlead.cli.screen import print_json, say, table
from fairlead.cli.train import check_image, wheels_of
from fairlead.cli.within import Ready, plan_launch, within
from fairlead.launch import unpack
from fairlead.ml import registry
from fairlead.ml.task import Task
from fairlead.ml.train.host import generate
from fairlead.ml.train.model import TrainOptions
from fairlead.ml.train.session_runner import runner
from fairlead.perf.draw.pages import require_tools
from fairlead.schedulers.registry import find_allocation
from fairlead.session import script_image
from fairlead.session.model import Prepared
from fairlead.session.prepare import refuse
from fairlead.tune import space as spaces
from fairlead.tune.evolution import Evolution
from fairlead.tune.models import Model, bundled_space, space_of
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
from fairlead.tune.space import Space
from fairlead.tune.study import PRUNERS, SAMPLERS, Search, Study
from fairlead.tune.target import Script, Target
from fairlead.tune.tuner import Ended, Limits, Slots, Tuner, slots, visible_gpus
from fairlead.tune.workers import Worker

SHARE = click.FloatRange(0, 1)
BACKENDS = ("tensorflow", "torch")
EPILOG = """\b
Examples:
  fairlead tune train.py --space space.toml --trials 50
  fairlead tune train.py --space space.toml --trials 200 -n 4 --pruner asha -- --epochs 3
  fairlead tune train.py --space space.toml --sampler grid --image pytorch
  fairlead tune train.py --space space.toml --trials 100 --storage postgresql://host/studies
  fairlead tune hepcnn --trials 30 --train-events 2000
  fairlead train --from fairlead-tune/best.toml

\b
The same command goes on where it was interrupted. To watch: optuna-dashboard fairlead-tune/journal.log
"""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is tuned, and on how many ranks."""

    target: str = argument(metavar="SCRIPT|MODEL")
    arguments: tuple[str, ...] = argument(metavar="", nargs=-1, type=click.UNPROCESSED)
    ranks: int = option("-n -np --ranks", "Ranks of each trial.", default=1, type=click.IntRange(1))


@dataclass(frozen=True, kw_only=True)
class Searching:
    """How parameters are searched for."""

    space: Path | None = option(
        "--space FILE",
        "Parameters and objectives, in TOML.  [default: the model's]",
        type=FILE_HERE,
    )
    trials: int | None = option("--trials N", "Trials in all.  [default: a grid's]")
    sampler: str = option(
        "--sampler", "How parameters are chosen.", default="tpe", type=click.Choice(SAMPLERS)
    )
    pruner: str = option(
        "--pruner",
        "By what trials that report worse values than others are ended early.",
        default="none",
        type=click.Choice(PRUNERS),
    )
    seed: int = option(
        "--seed", "Seed of the search.", default=1, type=click.IntRange(0, 2**31 - 1)
    )
    population: int = option(
        "--population N", "Members of a generation, of genetic and pbt.", default=10
    )
    demes: int = option("--demes N", "Groups of a generation, of genetic.", default=1)
    mutation: float = option(
        "--mutation", "How likely a parameter changes, of genetic.", default=0.1, type=SHARE
    )
    crossover: float = option(
        "--crossover", "How likely it is the second parent's.", default=0.5, type=SHARE
    )
    storage: str = option(
        "--storage URL", "Database for the trials.  [default: a journal file in the folder of -o]"
    )

    @property
    def search(self) -> Search:
        how = Evolution(self.population, self.demes, self.mutation, self.crossover)
        return Search(self.sampler, self.pruner, self.trials, self.seed, self.storage, how)


@dataclass(frozen=True, kw_only=True)
class OfModel:
    """How a model is trained in each trial; its recipe says the rest."""

    data: Path | None = option(
        "--data",
        "Of a model: folder of your own files.  [default: samples generated once]",
        type=FOLDER_HERE,
    )
    train_samples: int | None = option(
        "--train-samples --train-events N",
        "Of a model: samples to generate and train on.",
        type=click.IntRange(100),
    )
    epochs: int | None = option("--epochs", "Of a model: passes over the samples.")
    backend: str = option(
        "--backend", "Of a model: Keras backend.", default="tensorflow", type=click.Choice(BACKENDS)
    )


@dataclass(frozen=True, kw_only=True)
class TuneFlags:
    """The options of ``fairlead tune`` that no other group of options holds."""

    at_once: int | None = option(
        "--at-once N", "Trials that run at once.  [default: as many as have cores]"
    )
    max_seconds: float | None = option(
        "--max-seconds", "Time limit of a trial, which fails then.", type=SECONDS
    )
    output: Path = option(
        "-o --output", "Folder of the search.", default="fairlead-tune", type=FOLDER
    )
    env: tuple[str, ...] = options.ENV
    watchdog: float | None = options.WATCHDOG
    dry_run: bool = option("--dry-run", "Print what would be done, and launch nothing.")
    quiet: bool = option("-q --quiet", "Print only errors and the result.")
    as_json: bool = JSON
    timeline_file: str = ""


@click.command(epilog=EPILOG)
@declared
def tune(
    wanted: Wanted,
    searching: Searching,
    of_model: OfModel,
    asked: options.Nodes,
    image: str = options.image_option(
        "; of a script what has its frameworks, with --backend torch `pytorch`."
    ),
    *,
    planning: options.Planning,
    flags: TuneFlags,
) -> int:
    """Search for the best parameters of SCRIPT or of a bundled MODEL, in trials that are proved launches.

    SCRIPT gets its parameters as options, behind its own arguments, which follow `--`; there, {folder}, {trial} and
    {seed} stand for a trial's own. Its value is what it reports by fairlead.tune.report(step, value), what it prints
    as `FoM: VALUE`, or what the space file says. A trial that fails is kept with its reason.
    """
    require_tools()
    search = searching.search
    variables = options.variables(flags.env)
    env = {name: value for name, value in variables.items() if name not in options.MERGED}
    if search.sampler == "pbt" and not Path(wanted.target).is_file():
        raise fail("tune-pbt-model", target=wanted.target)
    asked, target = replace(asked, ranks=wanted.ranks), wanted.target
    if Path(target).is_file():
        if searching.space is None:
            raise fail("tune-space-none", target=target)
        script = Script(Path(target).resolve(), wanted.arguments, spaces.read(searching.space), env)
        image = _image(script.path, image)
        ready = _plan(image, asked, planning, flags, script.base_command)
        if flags.dry_run:
            return show.dry_run(
                "tune", ready.prepared, _steps(script, search, flags), flags.as_json
            )
        return _search(ready, asked.cores or 1, script, search, flags)
    task, space = _task(target, searching.space)
    if wanted.arguments:
        raise click.UsageError("words behind `--` are for a script; a model has none")
    if of_model.backend == "torch" and not options.is_given(click.get_current_context(), "image"):
        image = "pytorch"
    ready = _plan(image, asked, planning, flags, ())
    check_image(ready.prepared, image, of_model.backend, generates=of_model.data is None)
    model = _model(task, space, of_model, ready, flags, env)
    if flags.dry_run:
        return show.dry_run("tune", ready.prepared, _steps(model, search, flags), flags.as_json)
    return _search(ready, asked.cores or 1, model, search, flags)


def _task(target: str, path: Path | None) -> tuple[Task, Space]:
    """The model of that name, and its space.

    Raises:
        FairleadError: exit code 2; there is neither such a script nor such a model, or no space for it.
    """
    task = registry.REGISTRY.find(target)
    if task is None:
        raise fail("tune-target", target=target, hint=suggest(target, registry.names()))
    path = path or bundled_space(task.name)
    if path is None:
        raise fail("tune-space-none", target=target)
    return task, space_of(task, path)


def _model(
    task: Task, space: Space, of_model: OfModel, ready: Ready, flags: TuneFlags, env: dict[str, str]
) -> Model:
    """The model with its data, which are generated unless they are there."""
    settings = TrainOptions(
        run_dir=flags.output.absolute() / "data",
        model=task.name,
        ranks=ready.shape.ranks,
        data_dir=of_model.data.absolute() if of_model.data else None,
        data_format="tfrecord" if of_model.backend == "torch" else "hdf5",
        train_samples=of_model.train_samples,
        epochs=of_model.epochs,
        backend=of_model.backend,
        max_seconds=math.inf,
        forward_apart=False,
    )
    data = settings.data_dir or Path("generated")
    if settings.data_dir is None and not flags.dry_run:
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        unpack.ensure(ready.prepared.plan, cache_dir(), ready.progress)
        launcher = runner(ready.prepared, settings.run_dir / "ranks.log", lambda proof: None)
        data = generate(launcher, settings, ready.progress)
    return Model(task, space, settings, data, env)


def _plan(
    image: str,
    asked: options.Nodes,
    planning: options.Planning,
    flags: TuneFlags,
    command: tuple[str, ...],
) -> Ready:
    """The launch that all trials share. On this machine, the tuner itself gives them cores."""
    if find_allocation(os.environ) is None:
        # A job of the scheduler has room for all trials that are to run at once.
        whole = replace(asked, ranks=(asked.ranks or 1) * (flags.at_once or 1))
        within(whole, planning, dry_run=flags.dry_run, quiet=flags.quiet)
        asked = replace(asked, cores=None)
    ready = plan_launch(
        image, asked, planning, flags, command=command,
        variables=options.variables(flags.env), quiet=flags.quiet,
    )  # fmt: skip
    prepared = ready.prepared
    if prepared.refused:
        raise refuse(prepared)
    if ready.allocation and prepared.plan.launcher.kind == "srun":  # steps next to each other
        shape = prepared.plan.request.shape
        shape = replace(shape, cores=shape.cores or 1, extra=("--exact", "--mem=0", *shape.extra))
        request = replace(prepared.plan.request, shape=shape)
        prepared = replace(prepared, plan=replace(prepared.plan, request=request))
        ready = replace(ready, prepared=prepared)
    return ready


def _search(ready: Ready, cores: int, target: Target, search: Search, flags: TuneFlags) -> int:
    """Runs the trials, shows them, and writes what they have found."""
    prepared, folder = ready.prepared, flags.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not flags.quiet:
        announce(prepared)
    unpack.ensure(prepared.plan, cache_dir(), ready.progress)
    worker = Worker(folder / "workers")
    try:
        study = Study(folder, target.space, search, worker)
        if not flags.quiet and (others := worker.others()):
            say(f"{len(others)} other tuners work on this search, and share its trials")
        limits = Limits(flags.max_seconds, flags.watchdog)
        places = _places(ready, cores, flags.at_once)
        with _shown(ready, study, target, flags) as on_ended:
            try:
                Tuner(study, target, prepared, places, limits, worker, on_ended).run()
            finally:
                result = _write(folder, study, target, prepared)
    finally:
        worker.end()
    _show(result, folder, flags)
    return ExitCode.DONE if result.best else ExitCode.FAILED


def _places(ready: Ready, cores: int, at_once: int | None) -> Slots:
    """Where trials run at once: on cores of this machine, or as steps of a job."""
    plan, job = ready.prepared.plan, ready.allocation
    shape = plan.request.shape
    by_steps = job.slots if job and plan.launcher.kind == "srun" else 0
    return slots(shape.ranks * cores, at_once, by_steps, shape.ranks * shape.gpus, visible_gpus())


@contextmanager
def _shown(
    ready: Ready, study: Study, target: Target, flags: TuneFlags
) -> Iterator[Callable[[Ended], None]]:
    """A stage that each trial that is over advances; on a terminal the bar shows the best, elsewhere a line each trial."""
    whole = study.trials_wanted
    with ready.progress.stage(f"tune {target.title}", whole, "trials") as stage:
        stage.advance(sum(t.state in ("complete", "pruned", "failed") for t in study.trials()))
        lines = not (flags.quiet or sys.stderr.isatty())

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


def _write(folder: Path, study: Study, target: Target, prepared: Prepared) -> TuneResult:
    """Writes the reports, and the best trial or trials as files to repeat them from."""
    result = result_of(study, target, prepared)
    write(folder, result)
    write_page(folder, result)
    front = study.best()
    for place, trial in enumerate(front):
        name = BEST if place == 0 else f"best-{trial.number}.toml"
        write_best(folder / name, trial, target, prepared, study)
    return result


def _show(result: TuneResult, folder: Path, flags: TuneFlags) -> None:
    """The best trials, and where the rest is."""
    if flags.as_json:
        files = {"page": folder / PAGE, "report": folder / DATA, "best_file": folder / BEST}
        print_json("tune", {**files, "result": result})
        return
    head = ("trial", *result.objectives, "parameters")
    click.echo(table(table_rows(result), head))
    counts = ", ".join(f"{count} {state}" for state, count in result.counts.items())
    click.echo(f"\n{counts}\nreport: {folder / PAGE}")
    if result.best:
        click.echo(f"repeat: fairlead train --from {folder / BEST}")


def _image(path: Path, asked: str) -> str:
    """The image for a script."""
    given = asked if options.is_given(click.get_current_context(), "image") else ""
    return script_image.choose(path, given, wheels_of, names.images)


def _steps(target: Script | Model, search: Search, flags: TuneFlags) -> list[str]:
    """What would be launched."""
    named = ", ".join(target.space.parameters)
    command = shlex.join(target.base_command) if isinstance(target, Script) else target.title
    return [
        f"{search.trials or 'all'} trials by {search.sampler}: {named}",
        f"each: {command}, with its parameters",
        f"report in {flags.output.absolute()}",
    ]
