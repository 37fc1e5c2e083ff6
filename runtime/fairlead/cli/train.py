"""``fairlead train``: a bundled model, data-parallel in an image, with a report."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.base.errors import ExitCode, FairleadError, Severity, fail
from fairlead.base.paths import cache_dir
from fairlead.cli import names, node_trial, options, repeat, show
from fairlead.cli.declare import (
    FILE_HERE,
    FOLDER,
    JSON,
    SECONDS,
    argument,
    declared,
    option,
)
from fairlead.cli.record import LEFT_OUT, Recorded, Recording
from fairlead.cli.screen import print_findings, print_json, say, table
from fairlead.cli.staged_data import (
    FOLDER_OR_URL,
    TrainStorage,
    code_of,
    paths,
    results_json,
    staged_data,
)
from fairlead.cli.within import Ready, plan_launch
from fairlead.image.open import open_image
from fairlead.launch import ranks_output, unpack
from fairlead.objects.url import Url
from fairlead.proof.verdict import Proof
from fairlead.record.gather import Asked as AskedOfRecord
from fairlead.session import script_image
from fairlead.session.model import Prepared
from fairlead.session.prepare import refuse
from fairlead.session.restarts import Attempts
from fairlead.transfer.job import Results

if TYPE_CHECKING:
    from fairlead.ml.train.model import TrainOptions
    from fairlead.ml.train.result import TrainResult

EPILOG = """\b
Examples:
  fairlead train hepcnn -n 2
  fairlead train hepcnn -n 4 --max-seconds 600 --epochs 5 -o report
  fairlead train hepcnn -n 2 --mpi container --json
  fairlead train resnet50 -n 2 --precision mixed_bfloat16
  fairlead train cosmoflow -n 2 --data /scratch/universes --checkpoint 300
  fairlead train cosmoflow -n 2 --data /scratch/universes --resume
  fairlead train hepcnn -n 2 --data s3://lab/hep --stage-out s3://lab/run-1
  fairlead train hepcnn -n 2 --epochs 1 --record run-1
  fairlead train --from fairlead-tune/best.toml
  fairlead train --auto train.py -n 4
  fairlead train --auto train.py -n 4 --image pytorch -- --epochs 3
  fairlead train --auto train.py -n 4 -o report --label
"""
DEFAULT_RANKS = 2
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
# Failures of a training that another attempt may not meet.
_OF_NODES = frozenset(
    {"node-lost", "rank-died", "rank-failed", "aborted", "launch", "train-launch"}
)
# What each backend is trained in.
_IMAGES = {"tensorflow": "tensorflow", "torch": "pytorch"}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is trained, and on how many ranks."""

    model: str | None = argument(metavar="MODEL", required=False)
    arguments: tuple[str, ...] = argument(metavar="", nargs=-1, type=click.UNPROCESSED)
    auto: Path | None = option(
        "--auto SCRIPT",
        "Instead of MODEL: run a serial Keras or torch script data-parallel. Its own arguments"
        " follow `--`.",
        type=FILE_HERE,
    )
    kept: Path | None = option(
        "--from FILE",
        "Instead of MODEL: repeat a trial of `fairlead tune`, by its best.toml.",
        type=FILE_HERE,
    )
    ranks: int | None = option(
        "-n -np --ranks", "Ranks to train on.  [default: 2, or what -N and --ranks-per-node give]"
    )


@dataclass(frozen=True, kw_only=True)
class TrainFlags(Recorded):
    """The options of ``fairlead train`` that no other group of options holds.

    Attributes:
        parameters: that a search has chosen.
        before, parts, part: of :class:`fairlead.ml.train.model.TrainOptions`.
    """

    data: Path | Url | None = option(
        "--data DIRECTORY|URL",
        "Your own files; of a URL (s3://…), staged to the nodes.  [default: samples generated once and kept]",
        type=FOLDER_OR_URL,
    )
    train_samples: int | None = options.TRAIN_SAMPLES
    published: bool = option(
        "--published", "Use the publication's recipe instead of the one that learns in minutes."
    )
    epochs: int | None = options.EPOCHS
    batch: int | None = option("--batch", "Samples per rank and step.  [default: the recipe's]")
    backend: str = options.BACKEND
    precision: str = option(
        "--precision",
        "Precision of the layers; weights stay float32.",
        default="float32",
        type=click.Choice(PRECISIONS),
    )
    max_seconds: float = option(
        "--max-seconds", "Time limit of the training.", default=90.0, type=SECONDS
    )
    seed: int = option(
        "--seed", "Seed for weights, data and order.", default=1, type=click.IntRange(0, 2**31 - 1)
    )
    every_seconds: float | None = option(
        "--checkpoint SECONDS",
        "Write a checkpoint every SECONDS, and one at the end.",
        type=click.FloatRange(0, min_open=True),
    )
    every_steps: int | None = option(
        "--checkpoint-steps N", "Also write a checkpoint every N steps."
    )
    resume: bool = option(
        "--resume", "Resume bit for bit from the last complete checkpoint in the report's folder."
    )
    requeue: float | None = options.REQUEUE
    skip_damaged: bool = options.SKIP_DAMAGED
    external_data: bool = options.EXTERNAL_DATA
    output: Path = option(
        "-o --output", "Folder for the report.", default="fairlead-report", type=FOLDER
    )
    label: bool = options.LABEL
    output_dir: Path | None = options.OUTPUT_DIR
    env: tuple[str, ...] = options.ENV
    watchdog: float | None = options.WATCHDOG
    timeline_file: str = options.TIMELINE
    dry_run: bool = option("--dry-run", "Print what would be done, and launch nothing.")
    as_json: bool = JSON
    parameters: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    parts: int = 1
    part: int = 0


class _TrainCommand(click.Command):
    """``fairlead train``, whose help lists all installed models; only help looks for them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from fairlead.ml import registry

        with formatter.section("Models"):
            formatter.write_dl([(task.name, task.title) for task in registry.REGISTRY.every()])
        super().format_options(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words that are left, as click has them; what is meant for a script is to follow ``--``."""
        typed = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            if not any(word.partition("=")[0] == "--auto" for word in typed):
                raise
            ours, own = _parted(self, typed)
            line = shlex.join(["fairlead", "train", *ours, "--", *own])
            raise fail("train-script-words", option=exc.option_name, line=line) from None


def _parted(command: click.Command, words: list[str]) -> tuple[list[str], list[str]]:
    """A command line's words, by whether the command knows them; what follows ``--`` it need not know."""
    known = {
        name: not (isinstance(option, click.Option) and option.is_flag)
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("-")
    }
    ours, own, ahead = list[str](), list[str](), iter(words)
    for word in ahead:
        if word == "--":
            break
        name, assigned, _ = word.partition("=")
        (ours if name in known else own).append(word)
        if known.get(name) and not assigned:
            ours += [value for value in [next(ahead, None)] if value is not None]
    return ours, [*own, *ahead]


@click.command(cls=_TrainCommand, epilog=EPILOG)
@declared
def train(
    wanted: Wanted,
    asked: options.Nodes,
    image: str = options.image_option(
        "; with --backend torch `pytorch`, with --auto what has the script's frameworks."
    ),
    *,
    planning: options.Planning,
    recovery: options.Recovery,
    storage: TrainStorage,
    flags: TrainFlags,
) -> int:
    """Train MODEL data-parallel in an image, and write report.html and report.json.

    The launch is planned, checked and proved as by `fairlead run`. Speed is measured on 1 rank,
    then the model is trained on all ranks: initial weights are broadcast, gradients are averaged, and
    at the end all ranks must hold the same bits. The held-out score is compared with a linear model's.

    With --auto, an unmodified serial script is launched: its data are split among the ranks, gradients
    are averaged, and rank 0 writes the models. Data that cannot be split are refused. -o asks for a report.
    """
    if wanted.kept is not None:
        kept = repeat.read(wanted.kept, bool(wanted.model or wanted.auto))
        if kept.target.script:
            return repeat.run_script(kept, wanted.kept)
        image = repeat.image_of(kept, wanted.kept, flags.as_json)
        wanted = replace(wanted, model=kept.target.model, ranks=wanted.ranks or kept.launch.ranks)
        planning, flags = repeat.planning_of(kept, planning), repeat.flags_of(kept, flags)
    words, ranks = tuple(filter(None, [wanted.model, *wanted.arguments])), wanted.ranks
    if ranks is None and not (asked.nodes or asked.per_node or asked.hosts):
        ranks = DEFAULT_RANKS
    if wanted.auto is not None:
        return _run_script(wanted.auto, words, ranks, image)
    from fairlead.ml import registry
    from fairlead.perf.draw.pages import require_tools

    context = click.get_current_context()
    if flags.backend == "torch" and not (wanted.kept or options.is_given(context, "image")):
        image = _IMAGES[flags.backend]
    task = registry.find(" ".join(words))
    output = flags.output.absolute()
    variables = options.variables(flags.env)
    restarts = recovery.policy(flags.requeue)
    _check_record(flags)
    storage.check(output)
    ready = plan_launch(
        image,
        replace(asked, ranks=ranks, spares=recovery.spares),
        planning,
        flags,
        variables=variables,
    )
    prepared, ranks = ready.prepared, ready.shape.ranks
    check_image(prepared, image, flags.backend, generates=flags.data is None)
    require_tools()
    urls = {"data": flags.data} if isinstance(flags.data, Url) else {}
    wish = storage.wish(urls, prepared.plan.site)
    here = paths(wish).get("data", flags.data)
    settings = _settings(replace(flags, data=here), task.name, ranks, output, restarts.times)
    if flags.dry_run:
        _refuse(prepared)
        steps = [*_steps(settings), *storage.lines(output)]
        return show.dry_run("train", prepared, steps, flags.as_json)
    record = None
    if flags.record:
        record = Recording(flags, ready, _asked_of(wanted, flags, image, variables))
    with record.of_failures(words) if record else nullcontext():
        _refuse(prepared)
        with storage.around(output, ready.progress) as results:
            with staged_data(wish, ready, planning):
                result, proof = _trained(ready, settings, flags, recovery, record, results)
            title = f"{task.title} in {image} on {ranks} rank{'s' if ranks > 1 else ''}"
            page, document = _reported(ready, proof, result, title, _repeat(context, image), output)
    _show(result, proof, page, document, flags, results)
    errors = [f for f in result.findings if f.severity is Severity.ERROR]
    code = code_of(ExitCode.FAILED if errors else ExitCode.DONE, results)
    if record:
        digest = result.all.weights[0].final
        findings = [*errors, *results.findings]
        say(f"record: {record.write(code, findings, weights=digest)}")
    return code


def _check_record(flags: TrainFlags) -> None:
    flags.check()
    if flags.results:
        raise click.UsageError("--result: the result of a training is its weights")
    if flags.record and flags.resume:
        raise click.UsageError("--record is for a whole training: leave out --resume")


def _refuse(prepared: Prepared) -> None:
    if prepared.refused:
        raise refuse(prepared)


def _trained(
    ready: Ready,
    settings: TrainOptions,
    flags: TrainFlags,
    recovery: options.Recovery,
    record: Recording | None,
    results: Results,
) -> tuple[TrainResult, Proof]:
    """The training, and the proof of its last launch that started MPI."""
    from fairlead.ml.train.host import train as train_model
    from fairlead.ml.train.session_runner import runner

    prepared, bars = ready.prepared, ready.progress
    output = settings.run_dir.parent
    output.mkdir(parents=True, exist_ok=True)  # where that fails, before any work
    if flags.output_dir:
        ranks_output.prepare(flags.output_dir.absolute())
    unpack.ensure(prepared.plan, cache_dir(), bars)
    slow = node_trial.failing(prepared, ready.allocation, bars) if recovery.check_nodes else {}
    restarts = recovery.policy(flags.requeue)
    attempts = Attempts(prepared, restarts, lambda finding: print_findings([finding]), slow)
    proofs: list[Proof] = []
    variables = options.variables(flags.env)
    launcher = runner(
        prepared,
        output / "ranks.log",
        proofs.append,
        flags.watchdog,
        ready.recorder,
        env={name: value for name, value in variables.items() if name not in options.MERGED},
        attempts=record.around(attempts) if record else attempts,
    )
    with attempts:
        try:
            result = train_model(
                launcher,
                settings,
                bars,
                lambda failure: _may_recover(failure) and attempts.again(),
            )
        finally:
            results.put_off = attempts.requeued
    return result, proofs[-1]


def _reported(
    ready: Ready,
    proof: Proof,
    result: TrainResult,
    title: str,
    again: tuple[str, ...],
    output: Path,
) -> tuple[Path, Path]:
    """Write the report; its page and document."""
    from fairlead.perf.draw.compose import compose
    from fairlead.perf.draw.run_page import write_report

    report = compose(title, ready.prepared, proof, again, training=result)
    with ready.progress.stage("write the report"):
        return write_report(output, report)


def _asked_of(
    wanted: Wanted, flags: TrainFlags, image: str, variables: Mapping[str, str]
) -> AskedOfRecord:
    """What the record says of the command line. A training reads its data, or the trial that it repeats."""
    read = [str(path) for path in (flags.data, wanted.kept) if isinstance(path, Path)]
    words = tuple(filter(None, [wanted.model, *wanted.arguments])) if not wanted.kept else ()
    given = tuple(options.given(click.get_current_context(), {*LEFT_OUT, "model", "image"}))
    inputs = tuple(dict.fromkeys([*read, *flags.inputs]))
    return AskedOfRecord(given, image, words, inputs, variables, verb="train")


def _run_script(script: Path, words: tuple[str, ...], ranks: int | None, image: str) -> int:
    """``fairlead run`` of a serial script, by what makes it one of many ranks."""
    from fairlead.cli.run import run

    context = click.get_current_context()
    asked = image if options.is_given(context, "image") else ""
    variables = options.variables(context.params["env"])
    image = script_image.choose(script, asked, wheels_of, names.images, "PYTHONPATH" in variables)
    own = {"model", "arguments", "auto", "ranks", "image"}
    of_run = {parameter.name for parameter in run.params}
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in own | of_run and options.is_given(context, name):
            flag = max(parameter.opts, key=len)
            raise fail("train-model-bundled-only", flag=flag, script=script)
    words_of_run = list(options.given(context, own))
    script = script.resolve()
    if not script.is_relative_to(Path.cwd()):  # that folder the container has anyhow
        words_of_run += ["--bind", str(script.parent)]
    if "PYTHONHASHSEED" not in {*os.environ, *variables}:
        # A list that a script makes of a set is to have one order on all ranks.
        words_of_run += ["--env", "PYTHONHASHSEED=0"]
    command = ["python3", "-m", "fairlead.comm.auto", str(script), *words]
    count = ["-n", str(ranks)] if ranks else []  # else as many as the nodes give
    argv = [*count, *words_of_run, image, "--", *command]
    typed = ["fairlead", "train", *options.given(context), *(["--", *words] if words else [])]
    with run.make_context("run", argv, parent=context.parent, obj=typed) as inner:
        code: int = run.invoke(inner) or 0
    return code


def _may_recover(failure: FairleadError) -> bool:
    """Whether a training failed by what may be otherwise on other nodes, and not by its data or its figures."""
    check = failure.findings[0].check
    return check in _OF_NODES or check.startswith("comm-") or failure.code is ExitCode.WATCHDOG


def wheels_of(image: str) -> Mapping[str, str] | None:
    """Its Python packages; None where there is no such image, which the launch itself reports."""
    try:
        return open_image(image).packages.get("wheel", {})
    except FairleadError:
        return None


def _settings(
    flags: TrainFlags, model: str, ranks: int, output: Path, restarts: int
) -> TrainOptions:
    """How the model is trained: fields with the name of a flag have its value."""
    from fairlead.ml.train.model import TrainOptions, tuned

    same = vars(flags).keys() & {field.name for field in fields(TrainOptions)}
    asked = {name: getattr(flags, name) for name in same}
    asked["every_seconds"] = flags.every_seconds or (math.inf if flags.every_steps else 600.0)
    needed = flags.resume or restarts > 0 or bool(flags.requeue)
    checkpoints = flags.every_seconds or flags.every_steps or needed
    made = TrainOptions(
        run_dir=output / "run",
        model=model,
        ranks=ranks,
        data_dir=flags.data.absolute() if isinstance(flags.data, Path) else None,
        # The images with torch have no HDF5.
        data_format="tfrecord" if flags.backend == "torch" else "hdf5",
        checkpoints=output / "checkpoints" if checkpoints else None,
        **asked,
    )
    return tuned(made, flags.parameters)


def _show(
    result: TrainResult,
    proof: Proof,
    page: Path,
    document: Path,
    flags: TrainFlags,
    results: Results,
) -> None:
    """Show the figures and where the report is."""
    if flags.as_json:
        values = {"report": document, "page": page, "proof": proof, "result": result}
        print_json("train", {**values, "stage": results_json(results)})
        return
    click.echo("\n" + _summary(result, proof, flags.resume))
    print_findings([*result.findings, *results.findings])
    click.echo(f"\nreport: {page}\n        {document}")


def _repeat(context: click.Context, image: str) -> tuple[str, ...]:
    """The commands that repeat this run, with exactly the options on this command line."""
    model = [context.params["model"]] if context.params["model"] else []
    words = ["fairlead", "train", *model, *options.given(context)]
    built = () if Path(image).exists() else (f"fairlead build {image}",)
    return (*built, shlex.join(words))


def check_image(prepared: Prepared, image: str, backend: str, *, generates: bool) -> None:
    """Check that the image holds what the ranks import, where its record lists packages.

    Args:
        generates: the ranks generate samples, rather than read files.
    Raises:
        FairleadError: exit code 2; it does not.
    """
    if not prepared.image.record.get("packages"):
        return  # not built by fairlead: only the ranks can say
    wheels = prepared.image.packages["wheel"]
    present = {name.lower().replace("_", "-").removesuffix("-cpu") for name in wheels}
    needed = [backend, "keras", "mpi4py"]
    needed += ["h5py"] if generates and backend == "tensorflow" else []
    if lacking := ", ".join(name for name in needed if name not in present):
        images = _IMAGES[backend]
        raise fail("train-image", lacking=lacking, image=image, backend=backend, images=images)


def _steps(settings: TrainOptions) -> list[str]:
    """What would be launched, in order. The lines themselves need files that each step makes."""
    task, (train_samples, held_out) = settings.task, settings.samples
    what = f"{task.sample}s"
    data = settings.data_dir or f"{train_samples} {what}, generated once and kept"
    kept = [f"checkpoints in {settings.checkpoints}"] if settings.checkpoints else []
    return [
        f"data: {data}",
        f"speed on 1 rank: {settings.measure_steps} steps of {settings.each} {what}",
        f"training on {settings.ranks} ranks: {settings.epochs or settings.recipe.epochs} epochs, at most "
        f"{settings.max_seconds:g} s, then {held_out} held-out {what}",
        *kept,
        f"a linear model on the same {what}",
        f"report in {settings.run_dir.parent}",
    ]


def _summary(result: TrainResult, proof: Proof, resume: bool) -> str:
    """The figures of a training, in a table."""
    from fairlead.ml.train.result import score_name

    every = result.all
    first = proof.ranks[0]
    rows = [("proved", f"{len(proof.ranks)} ranks", f"{first.version}; {first.transport}")]
    for gate in result.gates:
        linear = f"linear model on the same {result.task.sample}s: {result.baseline.scores[gate.metric]:.3f}"
        label = f"held-out {score_name(gate.metric)}"
        rows.append((label, f"{result.scores[gate.metric]:.3f}", f"{linear}; wanted {gate.words}"))
    if every.speed is not None:
        speed, s = f"{every.speed.samples_per_s:.1f}", "s" if every.ranks > 1 else ""
        rows.append((f"samples/s, {every.ranks} rank{s}", speed, f"batch {every.batch} a rank"))
    if result.one is not None and result.one.speed is not None:
        speed = f"{result.one.speed.samples_per_s:.1f}"
        rows.append(("samples/s, 1 rank", speed, "same batch a rank"))
        efficiency = f"{100 * result.efficiency:.0f} %"
        rows.append(("efficiency", efficiency, f"of {every.ranks} x 1 rank"))
    for written in every.checkpoints[-1:]:
        rate = written.bytes / written.seconds / 1e6
        held = f"{written.bytes / 1e6:.0f} MB at {rate:.0f} MB/s; the training paused for {written.held_s:.2f} s"
        rows.append(("last checkpoint", f"step {written.step}", held))
    if every.resumed_from:
        rows.append(("went on", f"after step {every.resumed_from}", "from a checkpoint"))
    elif resume:
        rows.append(("began", "at step 0", "there was no checkpoint to resume from"))
    digests = [weights.final for weights in every.weights]
    same = "bit-identical" if len({*digests}) == 1 else "DIFFERENT"
    rows.append(("weights", same, f"on {len(digests)} ranks: sha256 {digests[0][:16]}…"))
    return table(rows)
