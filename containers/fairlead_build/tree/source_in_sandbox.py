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
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fairlead_build.base import tar
from fairlead_build.base.jail import Jail, execute, spawn, within
from fairlead_build.base.proc import clean_environment
from fairlead_build.base.progress_protocol import report
from fairlead_build.tree.sandbox import LAY, enter, walk, write_tar
from fairlead_build.tree.unarchive import Hostile, unpack

# A fixed folder: compilers write it into what they make.
_SOURCES = "/usr/src/fairlead"


def main() -> None:
    """The request is the file that the first argument names."""
    asked = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    report("stage", "lay out the packages for building", 0, "")
    jail = enter(asked)
    if asked["python"]:
        execute(jail, ["python3", "-I", "/.fairlead-stage/install.py"], clean_environment())
    execute(jail, ["ldconfig"], clean_environment())
    for number, source in enumerate(asked["sources"]):
        results = Path(asked["results"], str(number))
        results.mkdir()
        if source["done"]:
            _lay(jail, source["done"], number)
        else:
            _build(jail, number, source, asked["epoch"], results)
            (results / "done").touch()


def _build(jail: Jail, number: int, source: Mapping[str, Any], epoch: int, results: Path) -> None:
    report("stage", f"build {source['name']} {source['version']}", 0, "lines")
    inner, given = f"{_SOURCES}/{source['name']}", f"/.fairlead-given/{number}"
    out = f"/.fairlead-out/{number}"
    with (results / "build.log").open("ab") as log:
        if source["archive"]:
            try:
                unpack(Path(source["archive"]), source["file"], jail, inner)
            except Hostile as exc:
                _stop(number, "hostile", str(exc))
        else:
            within(jail, lambda: shutil.copytree(f"{given}/tree", inner))
        for position, name in enumerate(source["patches"]):
            patch = ["patch", "-p1", "--forward", "--batch", "--no-backup-if-mismatch"]
            patch += ["-i", f"{given}/{position}.patch"]
            if _logged(jail, patch, source["env"], inner, log):
                _stop(number, "patch", name)
        within(jail, lambda: _ready(Path(inner), Path(out), source["run"], epoch))
        if source["run"] is not None:
            env = {**source["env"], "DESTDIR": f"{out}/dest"}
            if _logged(jail, ["/bin/sh", "-eu", f"{out}/run.sh"], env, inner, log):
                _stop(number, "run")
            with (results / "overlay.tar").open("wb") as overlay:
                made = within(jail, lambda: _tarred(Path(out), epoch, overlay))
            if not made:
                _stop(number, "empty")
            _lay(jail, f"{out}/overlay.tar", number)
        else:
            installer = next(Path(jail.given["/.fairlead-stage"], "installer").glob("pip-*.whl"))
            argv = [
                f"{source['env']['PREFIX']}/bin/python3", "-I",
                f"/.fairlead-stage/installer/{installer.name}/pip",
                "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir",
                "--disable-pip-version-check", "--verbose", "--wheel-dir", f"{out}/dest", ".",
            ]  # fmt: skip
            if _logged(jail, argv, source["env"], inner, log):
                _stop(number, "run")
            with (results / "partial").open("wb") as stream:
                name = within(jail, lambda: _wheel(Path(out, "dest"), stream))
            (results / "partial").rename(results / PurePosixPath(name).name)
            _lay(jail, f"{out}/dest/{name}", number)


# In the jail:


def _ready(folder: Path, out: Path, run: str | None, epoch: int) -> None:
    """Makes a source and the folder of its results ready for the commands ``run``."""
    _settle(folder, epoch)
    (out / "dest").mkdir(parents=True)
    if run is not None:
        (out / "run.sh").write_text(run, "utf-8")


def _tarred(out: Path, epoch: int, overlay: IO[bytes]) -> str:
    """Writes what was installed below ``dest`` twice: as a result, and for this very tree."""
    if not any((out / "dest").iterdir()):
        return ""
    with (out / "overlay.tar").open("w+b") as here:
        write_tar(walk(out / "dest"), epoch, here)
        here.write(tar.END)
        here.seek(0)
        shutil.copyfileobj(here, overlay)
    overlay.flush()
    return "made"


def _wheel(dest: Path, stream: IO[bytes]) -> str:
    """Writes the wheel that pip made to ``stream``; its name."""
    (wheel,) = dest.glob("*.whl")
    with wheel.open("rb") as made:
        shutil.copyfileobj(made, stream)
    stream.flush()
    return wheel.name


def _link(wheels: Path, result: str) -> None:
    wheels.mkdir(parents=True)
    (wheels / PurePosixPath(result).name).symlink_to(result)


# Outside:


def _stop(number: int, step: str, detail: str = "") -> None:
    report("failed", number, step, detail.replace("\t", " ").replace("\n", " "))
    sys.exit(1)


def _lay(jail: Jail, result: str, number: int) -> None:
    """Lays a result into this tree too: a later source may need it."""
    env = clean_environment()
    if result.endswith(".whl"):
        wheels = f"/.fairlead-wheels/{number}"
        within(jail, lambda: _link(Path(wheels), result))
        execute(jail, ["python3", "-I", "/.fairlead-stage/install.py", wheels], env)
    else:
        execute(jail, [*LAY, result], env)
        execute(jail, ["ldconfig"], env)


def _logged(
    jail: Jail, argv: list[str], env: Mapping[str, str], folder: str, log: IO[bytes]
) -> int:
    """Runs a program of the tree; each line it prints is logged and reported."""
    log.write(f"$ {' '.join(argv)}\n".encode())
    log.flush()
    # To a file, not a pipe: a program that a build leaves running would hold a pipe open.
    with open(log.name, "rb") as output:
        output.seek(0, os.SEEK_END)
        process = spawn(jail, argv, env, folder, stdout=log.fileno())
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
