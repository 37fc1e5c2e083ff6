"""``fairlead site export``: what fairlead knows of a site, as configuration of other tools.

One module a target, each a pure function from :class:`~fairlead.export.model.Facts` to files.
:mod:`~fairlead.export.gather` finds the facts, on this machine or in the capture of another;
:mod:`~fairlead.export.staged` is the folder with the host's MPI that most targets name,
:mod:`~fairlead.export.plugin` that with NCCL's network plugin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fairlead.base.errors import fail, os_error_as
from fairlead.base.paths import atomic_write
from fairlead.base.registry import Registry
from fairlead.export.model import STAGE, ExportFile, Facts, Target

TARGETS: Registry[Target] = Registry(
    "fairlead.export", "EXPORT", ("audience", "gather", "plugin", "staged")
)


def export(target: str, facts: Facts) -> tuple[ExportFile, ...]:
    """The files of one target.

    Raises:
        FairleadError: the target's format cannot hold a value, the facts do not allow it, or it names what other
            users cannot read.
    """
    chosen = TARGETS.get(target)
    make = chosen.nccl if facts.carries == "nccl" else chosen.files
    if make is None:
        able = ", ".join(name for name in TARGETS.names() if TARGETS.get(name).nccl)
        raise fail("export-nccl-target", target=target, able=able)
    files = make(facts)
    # What a script stages, only the one who runs it must be able to read.
    named = "\n".join(file.text for file in files if file.path != STAGE)
    for path, why in () if facts.private else facts.closed.items():
        if re.search(rf"{re.escape(path)}(?![\w.-])", named):
            raise fail(
                "export-private", target=target, path=path, why=why, remedy=_shared(path, facts)
            )
    return files


def _shared(path: str, facts: Facts) -> str:
    if facts.image and path == facts.image.path:
        return "copy the image where all can read it, and name that file: --image FILE"
    if path == facts.stage_root:
        return "choose a folder that all can enter: --stage DIR"
    if path == facts.folder:
        return "write the export to a folder that all can enter: -o DIR"
    if path == facts.mpi:
        return "name an MPI that all can read: --mpi PREFIX"
    return f"open {path} to others"


def write(files: Sequence[ExportFile], folder: Path) -> tuple[Path, ...]:
    """Writes ``files`` below ``folder``; replaces existing files, each only when it is complete.

    New folders can be entered by all, whatever the umask: exports are for other people.

    Raises:
        FairleadError: one cannot be written.
    """
    written = []
    for file in files:
        inner = PurePosixPath(file.path)
        assert not inner.is_absolute() and ".." not in inner.parts
        path = folder / inner
        with os_error_as("output-unwritable-export", filename=path):
            for parent in [p for p in reversed(path.parents) if not p.exists()]:
                parent.mkdir(exist_ok=True)
                parent.chmod(0o755)
            with atomic_write(path, "w") as stream:
                stream.write(file.text)
            path.chmod(file.mode)
        written.append(path)
    return tuple(written)
