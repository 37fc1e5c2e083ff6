"""Runs in a sandbox: unpacks, patches and builds each source of a recipe, one after another.

``sources.py`` starts it. Results and logs go to a folder of the request; a failure is reported by a line
``fairlead-failed`` with the source's number, the step and a detail.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fairlead_build.base import tar
from fairlead_build.base.proc import clean_environment
from fairlead_build.base.progress_protocol import report
from fairlead_build.tree.sandbox import LAY, enter, execute, spawn, walk, write_tar
from fairlead_build.tree.unarchive import Hostile, unpack

# A fixed folder: compilers write it into what they make.
_SOURCES = "/usr/src/fairlead"


def main() -> None:
    """The request is the file that the first argument names."""
    asked = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    report("stage", "lay out the packages for building", 0, "")
    root = enter(asked)
    if asked["python"]:
        execute(root, ["python3", "-I", "/.fairlead-stage/install.py"], clean_environment())
    execute(root, ["ldconfig"], clean_environment())
    for number, source in enumerate(asked["sources"]):
        results = Path(asked["results"], str(number))
        results.mkdir()
        if source["done"]:
            _lay(root, source["done"], number)
        else:
            _build(root, number, source, asked["epoch"], results)
            (results / "done").touch()


def _build(root: Path, number: int, source: Mapping[str, Any], epoch: int, results: Path) -> None:
    report("stage", f"build {source['name']} {source['version']}", 0, "lines")
    inner = f"{_SOURCES}/{source['name']}"
    given, folder = Path(f"/.fairlead-given/{number}"), root / inner.lstrip("/")
    with (results / "build.log").open("ab") as log:
        if source["archive"]:
            try:
                unpack(Path(source["archive"]), source["file"], root, inner)
            except Hostile as exc:
                _stop(number, "hostile", str(exc))
        else:
            shutil.copytree(root / f".fairlead-given/{number}/tree", folder)
        for position, name in enumerate(source["patches"]):
            patch = ["patch", "-p1", "--forward", "--batch", "--no-backup-if-mismatch"]
            patch += ["-i", str(given / f"{position}.patch")]
            if _logged(root, patch, source["env"], inner, log):
                _stop(number, "patch", name)
        _settle(folder, epoch)
        out = f"/.fairlead-out/{number}"
        dest = root / out.lstrip("/") / "dest"
        dest.mkdir(parents=True)
        if source["run"] is not None:
            script = dest.parent / "run.sh"
            script.write_text(source["run"], "utf-8")
            env = {**source["env"], "DESTDIR": f"{out}/dest"}
            if _logged(root, ["/bin/sh", "-eu", f"{out}/run.sh"], env, inner, log):
                _stop(number, "run")
            if not any(dest.iterdir()):
                _stop(number, "empty")
            with (results / "overlay.tar").open("wb") as overlay:
                write_tar(walk(dest), epoch, overlay)
                overlay.write(tar.END)
            shutil.copyfile(results / "overlay.tar", dest.parent / "overlay.tar")
            _lay(root, f"{out}/overlay.tar", number)
        else:
            installer = next(Path(root, ".fairlead-stage/installer").glob("pip-*.whl")).name
            argv = [
                f"{source['env']['PREFIX']}/bin/python3", "-I",
                f"/.fairlead-stage/installer/{installer}/pip",
                "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir",
                "--disable-pip-version-check", "--verbose", "--wheel-dir", f"{out}/dest", ".",
            ]  # fmt: skip
            if _logged(root, argv, source["env"], inner, log):
                _stop(number, "run")
            (wheel,) = dest.glob("*.whl")
            shutil.copyfile(wheel, results / wheel.name)
            _lay(root, f"{out}/dest/{wheel.name}", number)


def _stop(number: int, step: str, detail: str = "") -> None:
    report("failed", number, step, detail.replace("\t", " ").replace("\n", " "))
    sys.exit(1)


def _lay(root: Path, result: str, number: int) -> None:
    """Lays a result into this tree too: a later source may need it."""
    env = clean_environment()
    if result.endswith(".whl"):
        wheels = f"/.fairlead-wheels/{number}"
        (root / wheels.lstrip("/")).mkdir(parents=True)
        (root / wheels.lstrip("/") / result.rsplit("/", 1)[1]).symlink_to(result)
        execute(root, ["python3", "-I", "/.fairlead-stage/install.py", wheels], env)
    else:
        execute(root, [*LAY, result], env)
        execute(root, ["ldconfig"], env)


def _logged(
    root: Path, argv: list[str], env: Mapping[str, str], folder: str, log: IO[bytes]
) -> int:
    """Runs a program of the tree; each line it prints is logged and reported."""
    log.write(f"$ {' '.join(argv)}\n".encode())
    log.flush()
    # To a file, not a pipe: a program that a build leaves running would hold a pipe open.
    with open(log.name, "rb") as output:
        output.seek(0, os.SEEK_END)
        process = spawn(root, argv, env, folder, log.fileno())
        over = False
        while not over:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                over = True
            for raw in output:
                line = raw.decode("utf-8", "replace").rstrip().replace("\t", " ")
                report("advance", 1)
                report("note", line[:60])
                print(f"  {line}", file=sys.stderr, flush=True)
    return process.returncode


def _settle(folder: Path, epoch: int) -> None:
    """One time and one of two modes for every file: neither archive nor umask shows in a result."""
    for path in (folder, *folder.rglob("*")):
        info = path.lstat()
        if not stat.S_ISLNK(info.st_mode):
            executable = stat.S_ISDIR(info.st_mode) or info.st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


if __name__ == "__main__":
    main()
