"""Looks into a squashfs without unpacking it: its facts, and what its own Python compiles.

Runs as a process of its own, root of a user and mount namespace that ends with it: there an
ordinary user may mount, no set-user-id helper is needed, and no mount is left behind, however the
process ends. :func:`scan_squashfs` starts it; ``main`` is what runs inside.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, Finding, Severity, fail
from fairlead.base.serde import from_json, to_json
from fairlead.elf.facts import ImageFacts
from fairlead.image.packages import Installed, installed
from fairlead.image.scan import scan_tree
from fairlead_build.base.proc import child, clean_environment, run
from fairlead_build.tree.sandbox import in_namespaces

_BYTECODE = Path(__file__).with_name("inside") / "bytecode.py"


def scan_squashfs(
    squashfs: Path, folder: Path, *, facts: bool, wheel: bytes | None, python: str, site: str
) -> tuple[ImageFacts | None, Installed | None, dict[str, bytes]]:
    """Mounts ``squashfs`` and looks into it.

    Args:
        folder: an empty folder of ours; the mount point is made in it.
        facts: whether to scan it for facts and packages.
        wheel: a wheel to compile, None for none.
        python: the tree's Python, a path inside it.
        site: the folder inside the tree that the wheel is laid into.
    Returns:
        Facts and packages, if they were asked for; the .pyc files of the wheel, by name relative to
        ``site``.
    Raises:
        FairleadError: it cannot be mounted here, or its Python cannot compile the wheel.
    """
    mount = folder / "mnt"
    mount.mkdir(exist_ok=True)
    buffer = io.BytesIO(wheel or b"")
    if wheel:
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.comment = site.encode()  # where it is laid: tracebacks name that folder
    asked = {
        "squashfs": str(squashfs),
        "mount": str(mount),
        "facts": facts,
        "wheel": base64.b64encode(buffer.getvalue()).decode(),
        "python": python,
    }
    argv, env = in_namespaces(__name__)
    doing, given = "look into the image's tree", json.dumps(asked).encode()
    remedy = "check that user namespaces are allowed: `unshare --user --map-root-user true`"
    results = json.loads(run(argv, env=env, stdin=given, doing=doing, remedy=remedy))
    if "findings" in results:
        raise FairleadError([Finding(Severity.ERROR, **finding) for finding in results["findings"]])
    bytecode = {}
    if results["bytecode"]:
        with zipfile.ZipFile(io.BytesIO(base64.b64decode(results["bytecode"]))) as archive:
            bytecode = {name: archive.read(name) for name in archive.namelist()}
    if not facts:
        return None, None, bytecode
    installed_in = from_json(Installed, results["installed"])
    return from_json(ImageFacts, results["facts"]), installed_in, bytecode


def main() -> None:
    """Inside the namespaces: request on stdin, answer on stdout, both JSON."""
    asked = json.load(sys.stdin)
    try:
        answer = _answer(asked)
    except FairleadError as exc:
        kept = ("what", "where", "why", "remedy", "check")
        answer = {"findings": [{key: getattr(f, key) for key in kept} for f in exc.findings]}
    json.dump(answer, sys.stdout)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    mount = Path(asked["mount"])
    argv = ["squashfuse_ll", "-f", "-o", "ro", asked["squashfs"], str(mount)]
    with child(argv, env=clean_environment(), stderr=subprocess.STDOUT) as process:
        deadline = time.monotonic() + 30
        while not mount.is_mount():
            if process.poll() is not None or time.monotonic() > deadline:
                process.terminate()
                output = process.stdout.read().decode("utf-8", "replace") if process.stdout else ""
                raise fail("fuse-image-tree-cannot-mounted", mount=mount, output=output.strip())
            time.sleep(0.01)
        compiled = b""
        if asked["wheel"]:
            # Nothing is written to the tree: the wheel goes in by stdin and comes out by stdout.
            script, wheel = _BYTECODE.read_text("utf-8"), base64.b64decode(asked["wheel"])
            inside = ["chroot", mount, asked["python"], "-I", "-S", "-c", script]
            doing, remedy = "compile fairlead for the image's Python", "fairlead doctor"
            compiled = run(inside, env=clean_environment(), stdin=wheel, doing=doing, remedy=remedy)
        return {
            "facts": to_json(scan_tree(mount)) if asked["facts"] else None,
            "installed": to_json(installed(mount)) if asked["facts"] else None,
            "bytecode": base64.b64encode(compiled).decode(),
        }


if __name__ == "__main__":
    main()
