"""Compiles our wheel by a tree's own Python, without unpacking the tree.

Runs as a process of its own, root of a user and mount namespace that ends with it: there an
ordinary user may mount, no set-user-id helper is needed, and no mount is left behind, however the
process ends. :func:`compile_wheel` starts it; ``main`` is what runs inside.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

from fairlead.base.errors import FairleadError, Finding, Severity, fail
from fairlead.image.mount import mounts
from fairlead_build.base.proc import child, clean_environment, run
from fairlead_build.recipe.model import Python
from fairlead_build.tree.sandbox import in_namespaces

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
    argv, env = in_namespaces(__name__)
    answer = run(
        [*argv, squashfs, mount, f"{python.prefix}/bin/python3"], env=env, stdin=buffer.getvalue(),
        doing="look into the image's tree",
        remedy="check that user namespaces are allowed: `unshare --user --map-root-user true`",
    )  # fmt: skip
    if answer.startswith(b"{"):
        raise FairleadError(Finding(Severity.ERROR, **json.loads(answer)))
    with zipfile.ZipFile(io.BytesIO(answer)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def main(squashfs: str, mount: str, python: str) -> None:
    """Inside the namespaces: a zip of the wheel on stdin, on stdout one of its .pyc files or a finding."""
    try:
        sys.stdout.buffer.write(_compiled(squashfs, Path(mount), python))
    except FairleadError as exc:
        finding = exc.findings[0].to_json()
        json.dump({key: text for key, text in finding.items() if key != "severity"}, sys.stdout)


def _compiled(squashfs: str, mount: Path, python: str) -> bytes:
    argv = ["squashfuse_ll", "-f", "-o", "ro", squashfs, str(mount)]
    with child(argv, env=clean_environment()) as process:
        if not mounts(process, mount):
            process.terminate()
            output = process.stdout.read().decode("utf-8", "replace") if process.stdout else ""
            raise fail("fuse-image-tree-cannot-mounted", mount=mount, output=output.strip())
        # Nothing is written to the tree: the wheel goes in by stdin and comes out by stdout.
        script = _BYTECODE.read_text("utf-8")
        return run(
            ["chroot", str(mount), python, "-I", "-S", "-c", script],
            doing="compile fairlead for the image's Python", remedy="fairlead doctor",
            env=clean_environment(), stdin=sys.stdin.buffer.read(),
        )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
