"""Scans the squashfs of an image, without unpacking it.

:func:`look` starts ``main`` in a separate process, in a mount namespace (and, for an ordinary
user, a user namespace) that ends with it: it needs no setuid helper, and leaves no mount behind,
however the process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, Finding, Severity, fail
from fairlead.base.process import PYTHON
from fairlead.base.serde import from_json, to_json
from fairlead.base.system import is_mounted, stay_on_one_core
from fairlead.elf.facts import ImageFacts
from fairlead.image.budget import Budget, limit_s, too_long
from fairlead.image.packages import Installed, installed, text_in, walk
from fairlead.image.scan import scan_tree
from fairlead.image.tree_digest import scan_folder, tree_sha256

# What fairlead's builder leaves in an image.
RECORD = ".fairlead/image.json"
MATERIALS = ".fairlead/sbom.cdx.json"
_LONGEST_START_S = 30
_FUSE = "/dev/fuse"
# When the process that started one of these is killed, the kernel ends it too.
_TIED = ("setpriv", "--pdeathsig", "KILL")


class CannotLook(FairleadError):
    """This machine cannot mount any squashfs; the findings say why."""


@dataclass(frozen=True)
class Inspection:
    """What is in an image.

    Attributes:
        record: of fairlead's builder; empty when there is none.
        materials: the text of its bill of materials; likewise.
        tree_sha256: empty when it was not asked for, since all of the image has to be read.
    """

    facts: ImageFacts
    installed: Installed
    record: dict[str, Any]
    materials: str
    tree_sha256: str


def look(
    path: Path, offset: int, environ: Mapping[str, str] = os.environ, *, whole: bool = False
) -> Inspection:
    """What is in the squashfs that begins at ``offset`` of ``path``.

    Args:
        whole: read all of it, for the digest of its tree.
    Raises:
        CannotLook: squashfuse, FUSE or namespaces are missing here.
        FairleadError: it cannot be mounted.
    """
    program = shutil.which("squashfuse_ll", path=environ.get("PATH"))
    if program is None:
        raise CannotLook(fail("squashfuse", path_name=path.name).findings)
    if not os.access(_FUSE, os.R_OK | os.W_OK):
        raise CannotLook(_unseen(path, f"{_FUSE} cannot be opened").findings)
    python = [*PYTHON, "-m", __name__]
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    seconds = limit_s(environ)
    with tempfile.TemporaryDirectory(prefix="fairlead-mount-") as folder:
        words = [program, str(path), str(offset), folder, "whole" if whole else ""]
        try:
            done = subprocess.run(
                ["unshare", *namespaces, *_TIED, *python, *words],
                capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
                env={**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                timeout=seconds + _LONGEST_START_S,  # it keeps to its own limit, unless a read does not return
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise too_long(path, seconds) from None
    if done.returncode and done.stderr.startswith("unshare:"):
        raise CannotLook(_unseen(path, done.stderr.strip()).findings)
    if done.returncode:
        raise _unseen(path, done.stderr.strip() or f"it ended with {done.returncode}")
    answer = json.loads(done.stdout)
    if "finding" in answer:
        raise FairleadError(Finding(Severity.ERROR, **answer["finding"]))
    return from_json(Inspection, answer)


def look_into(root: Path, *, whole: bool = False, budget: Budget | None = None) -> Inspection:
    """As :func:`look`, of a folder.

    Raises:
        FairleadError: it takes more than ``budget``.
        OSError: a part of it cannot be read.
    """
    budget = budget or Budget(root)
    folders = list(walk(root, budget))
    return Inspection(
        facts=scan_tree(root, budget, folders),
        installed=installed(root, budget, folders),
        record=record_in(root, budget),
        materials=text_in(root, MATERIALS, budget),
        tree_sha256=tree_sha256(scan_folder(root, budget=budget)) if whole else "",
    )


def record_in(root: Path, budget: Budget | None = None) -> dict[str, Any]:
    """The record that fairlead's builder left in a tree; empty when there is none."""
    record: Any = {}
    with contextlib.suppress(ValueError):
        record = bounded_json.loads(text_in(root, RECORD, budget or Budget(root)) or "{}")
    return record if isinstance(record, dict) else {}


def main(program: str, path: str, offset: str, folder: str, whole: str) -> None:
    """Inside the namespaces: the answer on stdout, as JSON."""
    try:
        answer = _answer(program, Path(path), offset, Path(folder), bool(whole))
    except FairleadError as exc:
        finding = exc.findings[0].to_json()
        answer = {"finding": {k: v for k, v in finding.items() if k != "severity"}}
    json.dump(answer, sys.stdout)


def _answer(program: str, path: Path, offset: str, mount: Path, whole: bool) -> dict[str, Any]:
    if why := _damage(path, int(offset)):
        raise _unseen(path, why)
    stay_on_one_core()
    argv = [*_TIED, program, "-f", "-o", f"ro,offset={offset}", str(path), str(mount)]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        if not mounts(process, mount):
            process.kill()
            text = process.communicate()[0].decode("utf-8", "replace").strip()
            raise _unseen(path, text or "squashfuse_ll did not mount it")
        try:
            next(mount.iterdir(), None)
        except OSError as exc:
            why = f"it can be mounted, but its top folder cannot be read ({exc.strerror}): its content is damaged"
            raise _unseen(path, why) from None
        inspected: dict[str, Any] = to_json(
            look_into(mount, whole=whole, budget=Budget(mount, path))
        )
        return inspected
    except (OSError, ValueError) as exc:
        raise _unseen(path, str(exc)) from None
    finally:
        process.kill()
        process.wait()


# s_magic … s_minor, then root_inode, bytes_used and the starts of the tables: ids, attributes, inodes, folders, fragments,
# exports. Source: the kernel's fs/squashfs/squashfs_fs.h.
_SUPERBLOCK = struct.Struct("<5I6H8Q")
_NO_TABLE = (1 << 64) - 1


def _damage(path: Path, offset: int) -> str:
    """What is wrong with a squashfs by its superblock; empty for nothing.

    squashfuse mounts some of these, and then fails at each read, or never ends.
    """
    with path.open("rb") as stream:
        there = os.fstat(stream.fileno()).st_size - offset
        stream.seek(offset)
        head = stream.read(_SUPERBLOCK.size)
    if len(head) < _SUPERBLOCK.size or not head.startswith(b"hsqs"):
        return "it does not begin as a squashfs does"
    _, _, _, _, _, _, block_log, _, _, major, minor, _, used, *tables = _SUPERBLOCK.unpack(head)
    if (major, minor) != (4, 0) or not 12 <= block_log <= 20:
        return f"its superblock is damaged: version {major}.{minor}, blocks of 2^{block_log} bytes"
    if used > there:
        return f"it is truncated: it has {there} bytes, its superblock needs {used}"
    ids, _, inodes, folders, _, _ = tables
    if any(table >= used for table in tables if table != _NO_TABLE) or not inodes < folders < ids:
        return "its superblock is damaged: a table begins outside of it"
    return ""


def mounts(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Waits until a process has mounted something at a folder; False if it ended first, or after 30 s."""
    until = time.monotonic() + _LONGEST_START_S
    while not is_mounted(folder):
        if process.poll() is not None or time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _unseen(path: Path, why: str) -> FairleadError:
    return fail("image-mount", path=path, why=why)


if __name__ == "__main__":
    main(*sys.argv[1:])
