"""``fairlead train --from best.toml``: a trial of a search, repeated."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.base.errors import FairleadError, fail
from fairlead.cli.options import Planning, given
from fairlead.image.open import open_image

if TYPE_CHECKING:
    from fairlead.cli.train import TrainFlags
    from fairlead.tune.result import Kept


def read(path: Path, others: bool) -> Kept:
    """The trial in a file.

    Args:
        others: something else to train was named, too.
    """
    if others:
        raise click.UsageError("--from repeats a trial: it takes neither MODEL nor --auto")
    from fairlead.tune.result import read_best

    return read_best(path)


def image_of(kept: Kept, path: Path) -> str:
    """The trial's image: its file, or what has its name and the same content now.

    Raises:
        FairleadError: exit code 2; there is none with that content.
    """
    image, found = kept.image, ""
    for name in (image.path, image.name):
        try:
            found = open_image(name).digest
        except FairleadError:
            continue
        if found == image.sha256:
            return name
    raise fail(
        "tune-repeat-image", path=path, found=found or "absent", kept=image.sha256, recipe=image.recipe or "RECIPE"
    )  # fmt: skip


def run_script(kept: Kept, path: Path) -> int:
    """``fairlead run`` of the trial's script with its parameters; the exit code.

    Raises:
        FairleadError: exit code 2; script or image are others.
    """
    from fairlead.cli.run import run
    from fairlead.tune.result import script_of
    from fairlead.tune.target import TrialOf

    script = Path(str(kept.target.script))
    try:
        digest = hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError as exc:
        raise fail("tune-repeat-script", script=script, reason=exc.strerror) from None
    if digest != kept.target.sha256:
        raise fail("tune-repeat-script", script=script, reason="its content has changed")
    image, context = image_of(kept, path), click.get_current_context()
    folder = Path(tempfile.mkdtemp(prefix="fairlead-repeat-"))
    trial = TrialOf(kept.trial.number, kept.trial.seed, folder)
    work = script_of(kept).work(trial, kept.parameters)
    argv = ["-n", str(kept.launch.ranks), "--mpi", kept.launch.mpi]
    argv += [word for bind in work.binds for word in ("--bind", bind)]
    argv += [word for name, value in work.env.items() for word in ("--env", f"{name}={value}")]
    argv += [*given(context, {"kept", "ranks", "image", "mpi"}), image, "--", *work.command]
    typed = ["fairlead", "train", *given(context)]
    with run.make_context("run", argv, parent=context.parent, obj=typed) as inner:
        code: int = run.invoke(inner) or 0
    return code


def flags_of(kept: Kept, flags: TrainFlags) -> TrainFlags:
    """The options of a training, as the trial had them."""
    target = kept.target
    names = ("published", "backend", "precision", "epochs", "max_seconds", "seed", "train_samples")
    same = {name: getattr(target, name) for name in names}
    return replace(flags, parameters=kept.parameters, **same)


def planning_of(kept: Kept, planning: Planning) -> Planning:
    """The options of planning, with the trial's MPI."""
    return replace(planning, mpi=kept.launch.mpi) if planning.mpi == "host" else planning
