"""``fairlead train --from best.toml``: a trial of a search, repeated."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead import __version__
from fairlead.base.errors import FairleadError, fail
from fairlead.cli.options import Planning, given
from fairlead.cli.screen import progress, say
from fairlead.image.open import open_image
from fairlead.image.recipes import rebuilt

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


def image_of(kept: Kept, path: Path, quiet: bool = False) -> str:
    """The trial's image: its file, what has its name, or what its recipe and lock are built to, with the same content.

    Raises:
        FairleadError: exit code 2; there is none with that content.
    """
    image, digest = kept.image, ""
    for name in (image.path, image.name):
        try:
            digest = open_image(name).digest
        except FairleadError:
            continue
        if digest == image.sha256:
            return name
    if kept.recipe and image.recipe:
        if not quiet:
            say(f"the image of the trial is not here: building it from its recipe, {image.recipe}")
        built = rebuilt(kept.recipe, image.recipe, progress(quiet))
        if built is not None:
            digest = open_image(str(built)).digest
            if digest == image.sha256:
                return str(built)
    raise fail(
        "tune-repeat-image", path=path, found=digest or "absent", kept=image.sha256, recipe=image.recipe or "RECIPE",
        version=kept.trial.fairlead, own=__version__,
    )  # fmt: skip


def _script(kept: Kept, folder: Path) -> Path:
    """The trial's script, or where that is absent its text, in a file of its own.

    Raises:
        FairleadError: exit code 2; there is another one, or neither.
    """
    script = Path(str(kept.target.script))
    try:
        body = script.read_bytes()
    except OSError as exc:
        text = kept.files.get(script.name)
        if text is None:
            raise fail("tune-repeat-script", script=script, reason=exc.strerror) from None
        body, script = text.encode(), folder / script.name
        script.write_bytes(body)
    if hashlib.sha256(body).hexdigest() != kept.target.sha256:
        raise fail("tune-repeat-script", script=script, reason="its content has changed")
    return script


def run_script(kept: Kept, path: Path) -> int:
    """``fairlead run`` of the trial's script with its parameters; the exit code.

    Raises:
        FairleadError: exit code 2; script or image are others.
    """
    from fairlead.cli.run import run
    from fairlead.tune import passing
    from fairlead.tune.result import script_of
    from fairlead.tune.target import TrialOf

    folder = Path(tempfile.mkdtemp(prefix="fairlead-repeat-"))
    script = _script(kept, folder)
    image, context = image_of(kept, path), click.get_current_context()
    typed, source = ["fairlead", "train", *given(context)], None
    trials = [(t.number, t.seed, t.parameters) for t in kept.before]
    for number, seed, parameters in (
        *trials,
        (kept.trial.number, kept.trial.seed, kept.parameters),
    ):
        own = folder / f"{number:05}"
        own.mkdir()
        passing.write(own, parameters)
        work = script_of(kept, script).work(TrialOf(number, seed, own, source), parameters)
        argv = ["-n", str(kept.launch.ranks), "--mpi", kept.launch.mpi]
        argv += [word for bind in work.binds for word in ("--bind", bind)]
        argv += [word for name, value in work.env.items() for word in ("--env", f"{name}={value}")]
        argv += [*given(context, {"kept", "ranks", "image", "mpi"}), image, "--", *work.command]
        with run.make_context("run", argv, parent=context.parent, obj=typed) as inner:
            code: int = run.invoke(inner) or 0
        if code:
            break
        source = own
    return code


def flags_of(kept: Kept, flags: TrainFlags) -> TrainFlags:
    """The options of a training, as the trial had them."""
    target = kept.target
    names = ("published", "backend", "precision", "epochs", "max_seconds", "seed", "train_samples")
    same = {name: getattr(target, name) for name in names}
    before = tuple((other.part, other.parameters) for other in kept.before)
    return replace(
        flags, parameters=kept.parameters, before=before, parts=target.parts, part=kept.trial.part,
        **same,
    )  # fmt: skip


def planning_of(kept: Kept, planning: Planning) -> Planning:
    """The options of planning, with the trial's MPI."""
    return replace(planning, mpi=kept.launch.mpi) if planning.mpi == "host" else planning
