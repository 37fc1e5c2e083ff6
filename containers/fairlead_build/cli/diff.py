"""The verb ``fairlead diff``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.progress import human_bytes
from fairlead.base.serde import to_json
from fairlead.cli.declare import JSON, argument, declared, option
from fairlead.cli.names import completer
from fairlead.cli.screen import echo, print_json, progress, table
from fairlead_build.diff import Change, Difference, FileChange

_SHOWN = 20


@click.command()
@declared
def diff(
    a: str = argument(shell_complete=completer("image")),
    b: str = argument(shell_complete=completer("image")),
    files: bool = option("--files", f"List every file that differs, not the first {_SHOWN}."),
    as_json: bool = JSON,
) -> int:
    """Compare two images: packages, MPI, environment, labels, files.

    A and B are images of any format. `same bits`: the files are equal. `same tree`: they hold the
    same tree in another wrapping. As with diff(1), the exit code is 0 when they are the same, 1 when
    they differ, and 2 when they cannot be compared.

    \b
    fairlead diff last-year.sif tensorflow
    fairlead diff images/mpi-base.sandbox mpi-base --files
    """
    from fairlead.image.open import open_image
    from fairlead_build.diff import compare

    shown = progress(as_json)
    try:
        images = [open_image(name, progress=shown) for name in (a, b)]
        difference = compare(images[0], images[1], shown)
    except FairleadError as exc:
        raise FairleadError(exc.findings, ExitCode.USAGE) from None
    if as_json:
        payload = to_json(difference)
        payload["files"] = {**_totals(difference.files), "paths": payload["files"]}
        if not files:
            payload["files"]["paths"] = payload["files"]["paths"][:_SHOWN]
        paths = {"a": images[0].path, "b": images[1].path}
        print_json("diff", {**paths, **payload})
    else:
        echo(_text(difference, None if files else _SHOWN))
    return int(ExitCode.DONE if difference.same_tree else ExitCode.FAILED)


def _text(difference: Difference, limit: int | None) -> str:
    if difference.same_bits:
        return "same bits"
    if difference.same_tree:
        return "same tree, wrapped in another way"
    parts = []
    for title in ("System", "Packages", "MPI", "Environment", "Labels"):
        changes: tuple[Change, ...] = getattr(difference, title.lower())
        rows = [(c.name, c.old or "-", "->", c.new or "-") for c in changes]
        if rows:
            parts.append(f"{click.style(title, bold=True)}\n{table(rows, indent='  ')}")
    return "\n\n".join([*parts, _files(difference.files, limit)])


def _totals(files: Sequence[FileChange]) -> dict[str, int]:
    counts = {k: sum(f.kind == k for f in files) for k in ("added", "removed", "changed")}
    return {**counts, "bytes": sum(f.bytes for f in files)}


def _files(files: Sequence[FileChange], limit: int | None) -> str:
    total = _totals(files)
    growth = total["bytes"]
    head = (
        f"{total['added']} added, {total['removed']} removed, {total['changed']} changed; "
        f"{'+' if growth >= 0 else '-'}{human_bytes(abs(growth))}"
    )
    marks = {"added": "+", "removed": "-", "changed": "~"}
    rows = [(marks[f.kind], f"/{f.path}", f.what) for f in files[:limit]]
    lines = [f"{click.style('Files', bold=True)}  {head}", table(rows, indent="  ")]
    if limit is not None and len(files) > limit:
        lines.append(f"  and {len(files) - limit} more: --files shows all")
    return "\n".join(lines)
