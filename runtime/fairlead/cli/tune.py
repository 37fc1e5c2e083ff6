"""``fairlead tune``: a search over the parameters of a script or a model, each trial a proved launch."""

from __future__ import annotations

import math
import shlex
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
from fairlead.cli.screen import print_findings, say
from fairlead.cli.train import check_image, wheels_of
from fairlead.cli.tune_result import show_result, shown, written
from fairlead.cli.tune_trials import Trials, run_trial, trial_of_job
from fairlead.cli.within import Ready
from fairlead.launch import unpack
from fairlead.ml import registry
from fairlead.ml.task import Task
from fairlead.ml.train.host import generate
from fairlead.ml.train.model import TrainOptions
from fairlead.ml.train.session_runner import runner
from fairlead.objects.url import is_url, parse
from fairlead.perf.draw.pages import require_tools
from fairlead.session import script_image
from fairlead.tune import space as spaces
from fairlead.tune.artifacts import Artifacts, kept
from fairlead.tune.evolution import Evolution
from fairlead.tune.models import Model, bundled_space, space_of
from fairlead.tune.result import TuneResult
from fairlead.tune.space import Space
from fairlead.tune.study import PRUNERS, SAMPLERS, Search, Study
from fairlead.tune.target import Script, Target
from fairlead.tune.tuner import Limits, Means, Tuner
from fairlead.tune.workers import Worker

SHARE = click.FloatRange(0, 1)
EPILOG = """\b
Examples:
  fairlead tune train.py --space space.toml --trials 50
  fairlead tune train.py --space space.toml --trials 200 -n 4 --pruner asha -- --epochs 3
  fairlead tune train.py --space space.toml --sampler grid --image pytorch
  fairlead tune train.py --space space.toml --trials 100 --storage postgresql://host/studies
  fairlead tune train.py --space space.toml --trials 100 --artifacts s3://lab/search-1
  fairlead tune hepcnn --trials 30 --train-events 2000
  fairlead tune hepcnn --trials 40 --sampler pbt --population 8 --epochs 1
  fairlead tune train.py --space space.toml --trials 200 -N 2 -n 8 --as-jobs --time 30m
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
    inherit: bool = option(
        "--inherit",
        "Of genetic: a child begins with its first parent's weights where shapes are the same.",
    )
    storage: str = option(
        "--storage URL", "Database for the trials.  [default: a journal file in the folder of -o]"
    )

    @property
    def search(self) -> Search:
        how = Evolution(
            self.population, self.demes, self.mutation, self.crossover, inherit=self.inherit
        )
        return Search(self.sampler, self.pruner, self.trials, self.seed, self.storage, how)


@dataclass(frozen=True, kw_only=True)
class OfModel:
    """How a model is trained in each trial; its recipe says the rest."""

    data: Path | None = option(
        "--data",
        "Of a model: folder of your own files.  [default: samples generated once]",
        type=FOLDER_HERE,
    )
    train_samples: int | None = options.TRAIN_SAMPLES
    epochs: int | None = options.EPOCHS
    backend: str = options.BACKEND


def _url(context: click.Context, parameter: click.Parameter, text: str) -> str:
    if text and not is_url(text):
        raise click.BadParameter(f"{text!r} is not a URL; -o names a folder")
    return str(parse(text)) if text else ""


@dataclass(frozen=True, kw_only=True)
class TuneFlags:
    """The options of ``fairlead tune`` that no other group of options holds."""

    at_once: int | None = option(
        "--at-once N", "Trials that run at once.  [default: as many as have cores]"
    )
    as_jobs: bool = option(
        "--as-jobs",
        "Submit each trial as a job of its own; jobs go on when this command is killed.",
    )
    max_seconds: float | None = option(
        "--max-seconds", "Time limit of a trial, which fails then.", type=SECONDS
    )
    output: Path = option(
        "-o --output", "Folder of the search.", default="fairlead-tune", type=FOLDER
    )
    artifacts: str = option(
        "--artifacts URL",
        "Also keep that folder at this URL (s3://…), each trial when it ends; a search whose folder is lost goes on"
        " from there.",
        callback=_url,
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
    if search.evolution.inherit and search.sampler != "genetic":
        raise click.UsageError("--inherit: a search without --sampler genetic has no children")
    target = wanted.target
    trials = Trials(replace(asked, ranks=wanted.ranks), planning, flags)
    if Path(target).is_file():
        if searching.space is None:
            raise fail("tune-space-none", target=target)
        script = Script(Path(target).resolve(), wanted.arguments, spaces.read(searching.space), env)
        image = _image(script.path, image)
        ready = trials.plan(image, script.base_command)
        if (mine := trial_of_job()) is not None:
            return run_trial(ready, mine)
        if flags.dry_run:
            return show.dry_run(
                "tune", ready.prepared, _steps(script, search, flags), flags.as_json
            )
        return _search(ready, trials, script, search, flags)
    task, space = _task(target, searching.space)
    if wanted.arguments:
        raise click.UsageError("words behind `--` are for a script; a model has none")
    if of_model.backend == "torch" and not options.is_given(click.get_current_context(), "image"):
        image = "pytorch"
    ready = trials.plan(image, ())
    if (mine := trial_of_job()) is not None:
        return run_trial(ready, mine)
    check_image(ready.prepared, image, of_model.backend, generates=of_model.data is None)
    search = _for_model(search, task, space)
    model = _inheriting(_model(task, space, of_model, ready, flags, env), search)
    if flags.dry_run:
        return show.dry_run("tune", ready.prepared, _steps(model, search, flags), flags.as_json)
    return _search(ready, trials, model, search, flags)


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


def _for_model(search: Search, task: Task, space: Space) -> Search:
    """The search with what a model adds to it: the structure of a network does not change while it trains."""
    if search.sampler != "pbt" or search.trials is None:
        return search
    size = search.evolution.population
    fixed = tuple(name for name in space.parameters if name in (*task.structure, "epochs"))
    evolution = replace(search.evolution, fixed=fixed, generations=-(-search.trials // size))
    return replace(search, evolution=evolution)


def _inheriting(model: Model, search: Search) -> Model:
    """The model with what a search adds to it."""
    how, pbt = search.evolution, search.sampler == "pbt"
    if not (pbt or how.inherit):
        return model
    options = replace(model.options, parts=how.generations or 1)
    return replace(model, options=options, inherits=True, generation=how.population if pbt else 0)


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


def _search(ready: Ready, trials: Trials, target: Target, search: Search, flags: TuneFlags) -> int:
    """Runs the trials, shows them, and writes what they have found."""
    prepared, folder = ready.prepared, flags.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not flags.quiet:
        announce(prepared)
    unpack.ensure(prepared.plan, cache_dir(), ready.progress)
    with kept(folder, flags.artifacts, print_findings) as artifacts:
        result = _searched(ready, trials, target, search, flags, artifacts)
    findings = artifacts.findings if artifacts else []
    print_findings(findings)
    show_result(result, folder, findings, as_json=flags.as_json)
    if findings:
        return ExitCode.LAUNCH_FAILED
    return ExitCode.DONE if result.best else ExitCode.FAILED


def _searched(
    ready: Ready,
    trials: Trials,
    target: Target,
    search: Search,
    flags: TuneFlags,
    artifacts: Artifacts | None,
) -> TuneResult:
    prepared, folder = ready.prepared, flags.output.absolute()
    worker = Worker(folder / "workers")
    try:
        study = Study(folder, target.space, search, worker)
        if not flags.quiet and (others := worker.others()):
            say(f"{len(others)} other tuners work on this search, and share its trials")
        means = Means(
            lambda: trials.launches(ready), trials.places(ready), prepared.plan.request.shape.ranks or 1,
            Limits(flags.max_seconds, flags.watchdog), artifacts,
        )  # fmt: skip
        with shown(ready.progress, study, target, quiet=flags.quiet) as on_ended:
            try:
                Tuner(study, target, means, worker, on_ended, say).run()
            finally:
                result = written(folder, study, target, prepared)
    finally:
        worker.end()
    return result


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
        *([f"kept at {flags.artifacts}"] if flags.artifacts else []),
    ]
