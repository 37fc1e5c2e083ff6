"""``fairlead train``: a bundled model, data-parallel in an image, with a report."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.base.errors import ExitCode, Severity, fail
from fairlead.base.paths import cache_dir
from fairlead.base.serde import to_json
from fairlead.cli import options
from fairlead.cli import timeline as timelines
from fairlead.cli.screen import json_option, print_findings, print_json, progress
from fairlead.cli.train_auto import run_script
from fairlead.cli.train_show import show_plan, summary
from fairlead.cli.within import within
from fairlead.launch import unpack
from fairlead.launch.request import Asked
from fairlead.proof.verdict import Proof
from fairlead.session.model import Prepared
from fairlead.session.prepare import prepare, refuse

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
  fairlead train --auto train.py -n 4
  fairlead train --auto train.py -n 4 --image pytorch -- --epochs 3
"""
DEFAULT_RANKS = 2
BACKENDS = ("tensorflow", "torch")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
# What each backend is trained in, and what its ranks import.
_IMAGES = {"tensorflow": "tensorflow", "torch": "pytorch"}
_NEEDED = {
    "tensorflow": ("tensorflow", "keras", "mpi4py"),
    "torch": ("torch", "keras", "mpi4py"),
}


@dataclass(frozen=True)
class TrainFlags:
    """The options of ``fairlead train`` that no other group of options holds."""

    auto: Path | None
    data: Path | None
    train_samples: int | None
    published: bool
    epochs: int | None
    batch: int | None
    backend: str
    precision: str
    max_seconds: float
    seed: int
    every_seconds: float | None
    every_steps: int | None
    resume: bool
    skip_damaged: bool
    output: Path
    watchdog: float | None
    timeline_file: str
    dry_run: bool
    as_json: bool


class _TrainCommand(click.Command):
    """``fairlead train``, whose help lists all installed models; only help looks for them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from fairlead.ml import registry

        with formatter.section("Models"):
            formatter.write_dl([(task.name, task.title) for task in registry.REGISTRY.every()])
        super().format_options(ctx, formatter)


@click.command(
    cls=_TrainCommand,
    epilog=EPILOG,
    short_help="Train a bundled model data-parallel, and write a report.",
)
@click.argument("model", metavar="MODEL", required=False)
@click.argument("arguments", metavar="", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--auto",
    metavar="SCRIPT",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Instead of MODEL: run a serial Keras or torch script data-parallel. Its own arguments"
    " follow `--`.",
)
@click.option(
    "-n",
    "--ranks",
    type=click.IntRange(1),
    help="Ranks to train on.  [default: 2, or what -N and --ranks-per-node give]",
)
@options.nodes_options
@options.image_option("; with --backend torch `pytorch`, unless another is named.")
@options.choice_options
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of your own files.  [default: samples generated once and kept]",
)
@click.option(
    "--train-samples",
    "--train-events",
    type=click.IntRange(100),
    metavar="N",
    help="Samples to generate and train on.  [default: what the model needs]",
)
@click.option(
    "--published",
    is_flag=True,
    help="Use the publication's recipe instead of the one that learns in minutes.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    help="Passes over the samples.  [default: the recipe's]",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    help="Samples per rank and step.  [default: the recipe's]",
)
@click.option(
    "--backend",
    default="tensorflow",
    show_default=True,
    type=click.Choice(BACKENDS),
    help="Keras backend.",
)
@click.option(
    "--precision",
    default="float32",
    show_default=True,
    type=click.Choice(PRECISIONS),
    help="Precision of the layers; weights stay float32.",
)
@click.option(
    "--max-seconds",
    default=90.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Time limit of the training.",
)
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=click.IntRange(0, 2**31 - 1),
    help="Seed for weights, data and order.",
)
@click.option(
    "--checkpoint",
    "every_seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Write a checkpoint every SECONDS, and one at the end.",
)
@click.option(
    "--checkpoint-steps",
    "every_steps",
    type=click.IntRange(1),
    metavar="N",
    help="Also write a checkpoint every N steps.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Resume bit for bit from the last complete checkpoint in the report's folder.",
)
@click.option(
    "--skip-damaged",
    is_flag=True,
    help="Skip and count files that cannot be read; all files are read first.",
)
@options.output_option("fairlead-report")
@options.watchdog_option
@timelines.timeline_option
@click.option("--dry-run", is_flag=True, help="Print what would be done, and launch nothing.")
@json_option
@options.collected(TrainFlags)
def train(
    model: str | None,
    arguments: tuple[str, ...],
    ranks: int | None,
    asked: Asked,
    image: str,
    planning: options.Planning,
    flags: TrainFlags,
) -> int:
    """Train MODEL data-parallel in an image, and write report.html and report.json.

    The launch is planned, checked and proved as by `fairlead run`. Speed is measured on 1 rank,
    then the model is trained on all ranks: initial weights are broadcast, gradients are averaged, and
    at the end all ranks must hold the same bits. The held-out score is compared with a linear model's.

    With --auto, an unmodified serial script is launched: its data are split among the ranks, gradients
    are averaged, and rank 0 writes the models. Data that cannot be split are refused.
    """
    if ranks is None and not (asked.nodes or asked.per_node or asked.hosts):
        ranks = DEFAULT_RANKS
    if flags.auto is not None:
        return run_script(flags.auto, ((model,) if model else ()) + arguments, ranks, image)
    from fairlead.ml import registry

    context = click.get_current_context()
    if flags.backend == "torch" and not options.is_given(context, "image"):
        image = _IMAGES[flags.backend]
    task = registry.find(" ".join(filter(None, [model, *arguments])))
    from fairlead.ml.train.host import train as train_model
    from fairlead.ml.train.session_runner import runner
    from fairlead.perf.draw import require_tools, write_report
    from fairlead.perf.draw.compose import compose

    shape, _ = within(replace(asked, ranks=ranks), planning, dry_run=flags.dry_run)
    output = flags.output.absolute()
    recorder = timelines.recording(
        flags.timeline_file, dry_run=flags.dry_run, nobody=timelines.NO_TRAINING
    )
    bars = progress(flags.as_json)
    bars = recorder.progress(bars) if recorder else bars
    with timelines.stage(recorder, "plan"):
        request = planning.request(shape.ranks, shape=shape)
        prepared = prepare(image, planning.choices, request, progress=bars)
    _check_image(prepared, image, flags.backend, generates=flags.data is None)
    require_tools()
    if prepared.refused:
        raise refuse(prepared)
    settings = _settings(flags, task.name, shape.ranks, output)
    if flags.dry_run:
        return show_plan(prepared, settings, flags.as_json)
    output.mkdir(parents=True, exist_ok=True)  # where that fails, before any work
    unpack.ensure(prepared.plan, cache_dir(), bars)
    proofs: list[Proof] = []
    launch_by_plan = runner(prepared, output / "ranks.log", proofs.append, flags.watchdog, recorder)
    result = train_model(launch_by_plan, settings, bars)
    proof = proofs[-1]  # of the training itself, the last launch that starts MPI
    title = f"{task.title} in {image} on {shape.ranks} rank{'s' if shape.ranks > 1 else ''}"
    report = compose(title, prepared, proof, result, _repeat(context, image))
    with bars.stage("write the report"):
        page, document = write_report(output, report)
    _show(result, proof, page, document, flags)
    failed = any(f.severity is Severity.ERROR for f in result.findings)
    return ExitCode.FAILED if failed else ExitCode.DONE


def _settings(flags: TrainFlags, model: str, ranks: int, output: Path) -> TrainOptions:
    """How the model is trained."""
    from fairlead.ml.train.model import TrainOptions

    checkpoints = flags.every_seconds or flags.every_steps or flags.resume
    return TrainOptions(
        run_dir=output / "run",
        model=model,
        published=flags.published,
        backend=flags.backend,
        precision=flags.precision,
        ranks=ranks,
        data_dir=flags.data.absolute() if flags.data else None,
        # The images with torch have no HDF5.
        data_format="tfrecord" if flags.backend == "torch" else "hdf5",
        train_samples=flags.train_samples,
        epochs=flags.epochs,
        batch=flags.batch,
        max_seconds=flags.max_seconds,
        seed=flags.seed,
        checkpoints=output / "checkpoints" if checkpoints else None,
        every_seconds=flags.every_seconds or (math.inf if flags.every_steps else 600.0),
        every_steps=flags.every_steps,
        resume=flags.resume,
        skip_damaged=flags.skip_damaged,
    )


def _show(result: TrainResult, proof: Proof, page: Path, document: Path, flags: TrainFlags) -> None:
    """Show the figures and where the report is."""
    if flags.as_json:
        payload: dict[str, Any] = {
            "report": str(document),
            "page": str(page),
            "proof": to_json(proof),
            "result": to_json(result),
        }
        print_json("train", payload)
        return
    click.echo("\n" + summary(result, proof, flags.resume))
    if result.findings:
        print_findings(result.findings)
    click.echo(f"\nreport: {page}\n        {document}")


def _repeat(context: click.Context, image: str) -> tuple[str, ...]:
    """The commands that repeat this run, with exactly the options on this command line."""
    words = ["fairlead", "train", str(context.params["model"]), *options.given(context)]
    built = () if Path(image).exists() else (f"fairlead build {image}",)
    return (*built, shlex.join(words))


def _check_image(prepared: Prepared, image: str, backend: str, *, generates: bool) -> None:
    """Check that the image holds what the ranks import, where its record lists packages.

    Args:
        generates: the ranks generate samples, rather than read files.
    Raises:
        FairleadError: exit code 2; it does not.
    """
    wheels = prepared.image.record.get("packages", {}).get("wheel")
    if wheels is None:
        return  # not built by fairlead: only the ranks can say
    present = {name.lower().replace("_", "-").removesuffix("-cpu") for name in wheels}
    needed = [*_NEEDED[backend], *(["h5py"] if generates and backend == "tensorflow" else [])]
    lacking = [name for name in needed if name not in present]
    if lacking:
        raise fail(
            "train-image",
            lacking=", ".join(lacking),
            image=image,
            backend=backend,
            images=_IMAGES[backend],
        )
