"""``fairlead train --auto SCRIPT``: ``fairlead run`` of a serial script, by what makes it one of many ranks."""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.base.errors import fail
from fairlead.cli import options

# What says how a bundled model is trained, and nothing of a script.
_OF_MODELS = (
    "data", "train_samples", "published", "epochs", "batch", "backend", "precision", "max_seconds", "seed", "output",
    "every_seconds", "every_steps", "resume", "skip_damaged",
)  # fmt: skip


def run_script(script: Path, words: tuple[str, ...], ranks: int | None, image: str) -> int:
    """`fairlead run` of the script, by what makes it one of many ranks."""
    from fairlead.cli.run import run

    context = click.get_current_context()
    if idle := [n for n in _OF_MODELS if options.is_given(context, n)]:
        flag = next(max(p.opts, key=len) for p in context.command.params if p.name == idle[0])
        raise fail("train-model-bundled-only", flag=flag, script=script)
    skipped = ("model", "arguments", "auto", "ranks", "image")
    words_of_run = list(options.given(context, skipped))
    script = script.resolve()
    if not script.is_relative_to(Path.cwd()):  # that folder the container has anyhow
        words_of_run += ["--bind", str(script.parent)]
    command = ["python3", "-m", "fairlead.comm.auto", str(script), *words]
    count = ["-n", str(ranks)] if ranks else []  # else as many as the nodes give
    argv = [*count, *words_of_run, image, "--", *command]
    with run.make_context("run", argv, parent=context.parent) as inner:
        code: int = run.invoke(inner) or 0
    return code
