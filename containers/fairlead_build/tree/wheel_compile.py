"""Compiles our wheel by a tree's own Python, without unpacking the tree.

:func:`compile_wheel` starts this module as a supervisor (``base/jail.py``), in whose namespaces an ordinary user may
mount the tree and no mount is left behind. Its Python runs in a jail that shows the tree, read-only.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Silent
from fairlead.base.system import stay_on_one_core
from fairlead.image.mount import mounts
from fairlead_build.base.jail import Jail, spawn, supervised, view_of
from fairlead_build.base.proc import child, clean_environment, tool_failed
from fairlead_build.base.progress_protocol import Phases, refuse
from fairlead_build.recipe.model import Python

_BYTECODE = Path(__file__).with_name("inside") / "bytecode.py"


def compile_wheel(wheel: bytes, python: Python, squashfs: Path, folder: Path) -> dict[str, bytes]:
    """The .pyc files of ``wheel``, by name relative to the folder of its modules.

    Args:
        python: of the tree in ``squashfs``.
        folder: an empty folder of ours; the mount point is made in it.
    Raises:
        FairleadError: the tree cannot be mounted here, or its Python cannot compile the wheel.
    """
    mount = folder / "mnt"
    mount.mkdir(exist_ok=True)
    buffer = io.BytesIO(wheel)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = python.site.encode()  # where it is laid: tracebacks name that folder
    python3 = f"{python.prefix}/bin/python3"
    with supervised(__name__, squashfs, mount, python3, stdin=subprocess.PIPE) as process:
        answer, errors = process.communicate(buffer.getvalue())
        if code := process.returncode:
            phases = Phases(Silent(), folder)
            for line in errors.decode("utf-8", "replace").splitlines():
                phases.feed(line)
            doing = "look into the image's tree"
            raise phases.failed([__name__], code, doing, "fairlead doctor")
    with zipfile.ZipFile(io.BytesIO(answer)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def main(squashfs: str, mount: str, python: str) -> None:
    """In the supervisor: a zip of the wheel on stdin, on stdout one of its .pyc files."""
    try:
        sys.stdout.buffer.write(_compiled(squashfs, Path(mount), python))
    except FairleadError as exc:
        refuse(exc)


def _compiled(squashfs: str, mount: Path, python: str) -> bytes:
    stay_on_one_core()
    argv = ["squashfuse_ll", "-f", "-o", "ro,allow_other", squashfs, str(mount)]
    with child(argv, env=clean_environment()) as process:
        if not mounts(process, mount):
            process.terminate()
            output = process.stdout.read().decode("utf-8", "replace") if process.stdout else ""
            raise fail("fuse-image-tree-cannot-mounted", mount=mount, output=output.strip())
        names = sorted({path.name for path in mount.iterdir()} - {"dev", "proc", "sys", "tmp"})
        jail = Jail(mount.parent / "jail", view=view_of(mount, names))
        jail.root.mkdir(exist_ok=True)
        # Nothing is written to the tree: the wheel goes in by stdin and comes out by stdout.
        script = _BYTECODE.read_text("utf-8")
        argv = [python, "-I", "-S", "-c", script]
        pipe = subprocess.PIPE
        with spawn(
            jail, argv, clean_environment(), stdin=pipe, stdout=pipe, stderr=pipe
        ) as compiler:
            made, errors = compiler.communicate(sys.stdin.buffer.read())
        if compiler.returncode:
            doing, text = (
                "compile fairlead for the image's Python",
                errors.decode("utf-8", "replace"),
            )
            raise tool_failed(argv, compiler.returncode, text, doing, "fairlead doctor")
        return made


if __name__ == "__main__":
    main(*sys.argv[1:])
