"""Does the container engine run a command in an image, here and for this user?

A version number does not tell: it takes user namespaces, FUSE, capabilities and loaders that
agree. So a tiny squashfs is made, the machine's own /usr is bound into it, and ``true`` runs there.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fairlead.doctor.process import Ran, run
from fairlead.engine import apptainer

_FOLDERS = ("usr", "etc", "dev", "proc", "sys", "tmp", "root", "home", "var", "var/tmp")
_FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "etc/localtime")


def probe_engine(environ: Mapping[str, str] = os.environ) -> Ran:
    """Runs ``true`` in a tiny image; its end tells.

    Raises:
        FairleadError: there is no engine.
    """
    engine = apptainer.detect(environ)
    with tempfile.TemporaryDirectory(prefix="fairlead-probe-") as folder:
        image = Path(folder, "probe.squashfs")
        made = _make_image(image)
        if made.returncode:
            return made
        command = apptainer.exec_argv(
            engine,
            str(image),
            [("/usr", "/usr", True)],
            ["/usr/bin/true"],
            extra=["--contain", "--no-home"],
        )
        return run(command, environ=environ, timeout_s=60)


def _make_image(image: Path) -> Ran:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in _FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name in _FILES:
            tar.addfile(tarfile.TarInfo(name))
        for name in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
    argv = ("tar2sqfs", "--quiet", str(image))
    try:
        done = subprocess.run(argv, input=data.getvalue(), capture_output=True, check=False)
    except FileNotFoundError as exc:
        return Ran(argv, 127, stderr=str(exc))
    return Ran(argv, done.returncode, stderr=done.stderr.decode(errors="replace"))
