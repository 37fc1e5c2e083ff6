"""What ``fairlead train`` says before and after: the steps of a dry run, the figures of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.base.errors import ExitCode
from fairlead.cli import show
from fairlead.cli.screen import print_json, table
from fairlead.proof.verdict import Proof
from fairlead.session.model import Prepared

if TYPE_CHECKING:
    from fairlead.ml.train.model import TrainOptions
    from fairlead.ml.train.result import TrainResult


def show_plan(prepared: Prepared, settings: TrainOptions, as_json: bool) -> int:
    """What would be launched, in order. The lines themselves need files that each step makes."""
    task, (train_samples, held_out) = settings.task, settings.samples
    what = f"{task.sample}s"
    found = settings.data_dir or f"{train_samples} {what}, generated once and kept"
    kept = [f"checkpoints in {settings.checkpoints}"] if settings.checkpoints else []
    steps = [
        f"data: {found}",
        f"speed on 1 rank: {settings.measure_steps} steps of {settings.each} {what}",
        f"training on {settings.ranks} ranks: {settings.epochs or settings.recipe.epochs} epochs, at most "
        f"{settings.max_seconds:g} s, then {held_out} held-out {what}",
        *kept,
        f"a linear model on the same {what}",
        f"report in {settings.run_dir.parent}",
    ]
    if as_json:
        print_json("train", {**show.prepared_json(prepared), "steps": steps, "dry_run": True})
    else:
        click.echo("\n".join([show.swap_line(prepared.plan), *steps]))
    return ExitCode.DONE


def summary(result: TrainResult, proof: Proof, resume: bool) -> str:
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
        rows.append(
            (
                f"samples/s, {every.ranks} rank{'s' if every.ranks > 1 else ''}",
                f"{every.speed.samples_per_s:.1f}",
                f"batch {every.batch} a rank",
            )
        )
    if result.one is not None and result.one.speed is not None:
        rows.append(
            ("samples/s, 1 rank", f"{result.one.speed.samples_per_s:.1f}", "same batch a rank")
        )
        rows.append(
            ("efficiency", f"{100 * result.efficiency:.0f} %", f"of {every.ranks} x 1 rank")
        )
    for written in every.checkpoints[-1:]:
        rate = written.bytes / written.seconds / 1e6
        held = f"{written.bytes / 1e6:.0f} MB at {rate:.0f} MB/s; the training paused for {written.held_s:.2f} s"
        rows.append(("last checkpoint", f"step {written.step}", held))
    if every.resumed_from:
        rows.append(("went on", f"after step {every.resumed_from}", "from a checkpoint"))
    elif resume:
        rows.append(("began", "at step 0", "there was no checkpoint to resume from"))
    digests = {w.final for w in every.weights}
    same = "bit-identical" if len(digests) == 1 else "DIFFERENT"
    rows.append(
        ("weights", same, f"on {len(every.weights)} ranks: sha256 {every.weights[0].final[:16]}…")
    )
    return table(rows)
