"""Does the container engine run a command in an image, here and for this user?

A version number does not show it: an engine needs user namespaces, FUSE, capabilities and loaders that
agree. So a tiny image is made, the machine's own /usr is bound into it, and ``true`` runs there.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fairlead.base.process import Ran, run
from fairlead.engines import registry as engines
from fairlead.engines.model import Call, Takes

WORDS = b"fairlead\n" * 4096
_FOLDERS = ("usr", "etc", "dev", "proc", "sys", "tmp", "root", "home", "var", "var/tmp")
_FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "etc/localtime")
_LINKS = ("bin", "sbin", "lib", "lib64")


# What the ranks of a node must have in common, and limits that a container must not lower.
_SCRIPT = """\
id() { stat -L -c %d:%i "$1" 2>/dev/null || echo absent; }
echo "shm=$(id /dev/shm)"
echo "tmp=$(id /tmp)"
for kind in user pid ipc net; do echo "$kind=$(readlink /proc/self/ns/$kind)"; done
echo "memlock=$(ulimit -l)"
"""


def probe_engine(environ: Mapping[str, str] = os.environ, compression: str = "zstd") -> Ran:
    """Runs ``true`` in a tiny image; its exit code is the answer.

    Raises:
        FairleadError: there is no engine.
    """
    return _in_image(environ, compression, ("/usr/bin/true",), ("--contain", "--no-home"))


def look_inside(environ: Mapping[str, str] = os.environ) -> tuple[Ran, Ran]:
    """What a process sees of the node: here, and in a container that is started as a rank's is.

    Raises:
        FairleadError: there is no engine.
    """
    words = ("/usr/bin/sh", "-c", _SCRIPT)
    return run(words, environ=environ, timeout_s=20), _in_image(environ, "zstd", words, ())


def _in_image(
    environ: Mapping[str, str], compression: str, command: tuple[str, ...], extra: tuple[str, ...]
) -> Ran:
    engine = engines.choose("apptainer", (), environ)
    with tempfile.TemporaryDirectory(prefix="fairlead-probe-") as folder:
        image = Path(folder, "probe.squashfs")
        made = make_image(image, compression)
        if made.returncode:
            return made
        call = Call(str(image), command, (("/usr", "/usr", True),), extra=extra)
        argv = engines.ENGINES.get(engine.kind).words(engine, call).argv
        return run(argv, environ=environ, timeout_s=60)


def probe_others(environ: Mapping[str, str] = os.environ) -> dict[str, Ran]:
    """The same by each other engine that is here and opens folders, by its kind."""
    found = {}
    for kind in engines.kinds():
        engine = engines.ENGINES.get(kind).detect(environ) if kind != "apptainer" else None
        if engine and engine.takes is Takes.FOLDER:
            with tempfile.TemporaryDirectory(prefix="fairlead-probe-") as folder:
                root = Path(folder, "root")
                for name in _FOLDERS:
                    (root / name).mkdir(parents=True, exist_ok=True)
                for name in _FILES:
                    (root / name).touch()
                for name in _LINKS:
                    (root / name).symlink_to(f"usr/{name}")
                call = Call(str(root), ("/usr/bin/true",), (("/usr", "/usr", True),))
                command = engines.ENGINES.get(kind).words(engine, call).argv
                done = run(command, environ=environ, timeout_s=60)
                # Its own words only: the shell around them is fairlead's.
                found[kind] = Ran((engine.path,), done.returncode, done.stdout, done.stderr)
    return found


def make_image(image: Path, compression: str) -> Ran:
    """Writes a tiny squashfs; ``/etc/words`` in it is a file that compresses."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in _FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name in _FILES:
            tar.addfile(tarfile.TarInfo(name))
        for name in _LINKS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
        words = tarfile.TarInfo("etc/words")
        words.size = len(WORDS)
        tar.addfile(words, io.BytesIO(WORDS))
    argv = ("tar2sqfs", "--quiet", "--compressor", compression, str(image))
    try:
        done = subprocess.run(argv, input=data.getvalue(), capture_output=True, check=False)
    except FileNotFoundError as exc:
        return Ran(argv, 127, stderr=str(exc))
    return Ran(argv, done.returncode, stderr=done.stderr.decode(errors="replace"))
