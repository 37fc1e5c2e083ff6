"""The tree of an image: Debian packages, wheels and files, as one squashfs without our own wheel.

mmdebstrap unpacks in a user namespace, from a folder that holds the locked packages and nothing
else, so nothing unlocked can come in and no network is needed. ``payload.py`` adds our wheel.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import selectors
import shlex
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

from fairlead.findings import FairleadError, fail
from fairlead.progress import Progress, Stage
from fairlead_build.lock import Lock, Wheel
from fairlead_build.proc import child, clean_environment, run, tool_failed
from fairlead_build.recipe import LoadedRecipe
from fairlead_build.squash import CHUNK, Compression, squashing
from fairlead_build.store import Cache, copy_blob, publish, scratch_parent, workspace

_INSIDE = Path(__file__).with_name("inside")
# Documentation and translations: nothing at run time reads them; copyright files stay.
_DPKG = (
    "force-unsafe-io",  # the tree is thrown away, whole or not
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/lintian/*",
)


def compression_of(lock: Lock) -> Compression:
    return Compression(lock.inputs.compressor, lock.inputs.level, lock.source_date_epoch)


def tree_key(loaded: LoadedRecipe, lock: Lock) -> str:
    """What the tree's bytes depend on, as one name."""
    told = {
        "packages": sorted(d.sha256 for d in lock.deb),
        "wheels": sorted([w.role, w.sha256] for w in lock.wheel),
        "epoch": lock.source_date_epoch,
        "compression": [lock.inputs.compressor, lock.inputs.level],
        "prefixes": _plan(loaded),
        "files": [[f.target, f.mode, f.sha256] for f in loaded.files],
        "how": [_digest(p) for p in (*sorted(_INSIDE.iterdir()), Path(__file__)) if p.is_file()],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _plan(loaded: LoadedRecipe) -> dict[str, str]:
    python, mpi = loaded.recipe.python, loaded.recipe.mpi
    return {
        "python": python.prefix if python else "",
        "mpi": mpi.home if mpi and mpi.source == "wheel" else "",
    }


def unpacked_bytes(lock: Lock) -> int:
    """A generous guess of the room that unpacking takes, packages included."""
    return 6 * lock.download_bytes + (200 << 20)


def build_tree(
    loaded: LoadedRecipe, lock: Lock, key: str, cache: Cache, progress: Progress
) -> Path:
    """Makes the squashfs of the tree, from the store alone.

    Raises:
        FairleadError: a tool failed, or there is no room.
    """
    with (
        workspace(scratch_parent(unpacked_bytes(lock)), "fairlead-") as scratch,
        workspace(cache.root / "work", "tree-") as work,
    ):
        with progress.stage("check and stage packages", lock.download_bytes, "B") as stage:
            _stage_packages(loaded, lock, cache, scratch, stage)
        made = work / "tree.squashfs"
        remedy = f"fairlead build {loaded.given}"
        with squashing(made, compression_of(lock), remedy) as sink:
            _unpack(lock, scratch, bool(loaded.recipe.python), sink, progress, remedy)
        publish(made, cache.tree(key))
    return cache.tree(key)


def _stage_packages(
    loaded: LoadedRecipe, lock: Lock, cache: Cache, scratch: Path, stage: Stage
) -> None:
    """Lays out what mmdebstrap reads: ``repo/`` for apt, ``stage/`` and ``files/`` for the hooks."""
    repo, inside, files = scratch / "repo", scratch / "stage", scratch / "files"
    for folder in (repo, inside, files):
        folder.mkdir()
    stanzas = []
    for deb in lock.deb:
        copy_blob(cache, deb.sha256, repo / deb.file)
        stage.advance(deb.size)
        control = run(
            ["dpkg-deb", "--field", repo / deb.file], doing=f"read package {deb.name}",
            remedy=f"fairlead recipe lock {loaded.given}",
        ).decode("utf-8", "replace")  # fmt: skip
        place = f"Filename: ./{deb.file}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        stanzas.append(control.rstrip("\n") + "\n" + place)
    _write(repo / "Packages", "\n".join(stanzas))
    for role in ("python", "mpi", "installer"):
        wheels = [w for w in lock.wheel if w.role == role]
        (inside / role).mkdir()
        _write(inside / role / "requirements.txt", "".join(map(_pin, wheels)))
        for wheel in wheels:
            copy_blob(cache, wheel.sha256, inside / role / wheel.file)
            stage.advance(wheel.size)
    _write(inside / "plan.json", json.dumps(_plan(loaded)))
    for script in sorted(_INSIDE.iterdir()):
        if script.is_file():
            _write(inside / script.name, script.read_text("utf-8"))
    for file in loaded.files:
        target = files / file.target.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.source.read_bytes())
        target.chmod(file.mode)
    for folder in (scratch, *(p for p in scratch.rglob("*") if p.is_dir())):
        folder.chmod(0o755)  # whatever the umask: mmdebstrap comes as somebody else


def _pin(wheel: Wheel) -> str:
    return f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    path.chmod(0o644)


def _unpack(
    lock: Lock, scratch: Path, with_python: bool, sink: IO[bytes], progress: Progress, remedy: str
) -> None:
    """Runs mmdebstrap, and passes the tar stream it makes on to ``sink``."""
    # /usr merged from the start, as Debian's installer does; then nothing has to be moved later.
    merged = 'for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d"; ln -s "usr/$d" "$1/$d"; done'
    files, stage = shlex.quote(f"{scratch}/files/."), shlex.quote(f"{scratch}/stage")
    lay = f'cp -r --no-preserve=ownership,timestamps {files} "$1/"'
    install = (
        f'mkdir "$1/.fairlead-stage" && cp -r {stage}/. "$1/.fairlead-stage/" && '
        'chroot "$1" /usr/bin/python3 -I /.fairlead-stage/install.py'
    )
    hooks = [
        lay,
        *([install] if with_python else ['chroot "$1" ldconfig']),
        f'sh {stage}/clean.sh "$1"',
    ]
    argv = [
        "mmdebstrap", "--mode=unshare", "--variant=essential", "--format=tar", "--verbose",
        f"--architectures={lock.architecture}", "--skip=output/dev,check/signed-by,cleanup/apt",
        f"--include={','.join(d.name for d in lock.deb)}", "--setup-hook=" + merged,
        *(f"--dpkgopt={option}" for option in _DPKG), *(f"--customize-hook={hook}" for hook in hooks),
        "", "-", f"deb [trusted=yes] copy://{quote(str(scratch))}/repo ./",
    ]  # fmt: skip
    env = clean_environment(
        {"SOURCE_DATE_EPOCH": str(lock.source_date_epoch), "TMPDIR": str(scratch)}
    )
    listener = _Listener(progress, packages=len(lock.deb), wheels=len(lock.wheel))
    with child(argv, env=env, stderr=subprocess.PIPE) as process, listener.open():
        for chunk in _stream(process, listener.hear):
            listener.squashed(len(chunk))
            sink.write(chunk)
        if code := process.wait():
            raise _mmdebstrap_failed(argv, code, "\n".join(listener.tail), remedy)


def _mmdebstrap_failed(argv: Sequence[str], code: int, text: str, remedy: str) -> FairleadError:
    if "/etc/subuid" in text or "newuidmap" in text:
        user = os.environ.get("USER") or str(os.getuid())
        return fail(
            "mmdebstrap may not use a user namespace", where="/etc/subuid, /etc/subgid", why=text,
            remedy=f"sudo apt-get install uidmap && sudo usermod --add-subuids 100000-165535 "
            f"--add-subgids 100000-165535 {user}",
            check="subuid",
        )  # fmt: skip
    return tool_failed(argv, code, text, "unpack the Debian packages", remedy)


def _stream(process: subprocess.Popen[bytes], hear: Callable[[str], None]) -> Iterator[bytes]:
    """stdout in chunks, while stderr's lines go to ``hear``."""
    assert process.stdout is not None and process.stderr is not None
    out, err = process.stdout.fileno(), process.stderr.fileno()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        selector.register(err, selectors.EVENT_READ)
        while selector.get_map():
            for ready, _ in selector.select():
                data = os.read(ready.fd, CHUNK)
                if not data:
                    selector.unregister(ready.fd)
                elif ready.fd == out:
                    yield data
                else:
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        hear(line.decode("utf-8", "replace"))
    if rest:
        hear(rest.decode("utf-8", "replace"))


@dataclass
class _Phase:
    stage: Stage
    context: AbstractContextManager[Stage]


class _Listener:
    """Turns mmdebstrap's words into stages: packages, wheels, compiling, squashing."""

    def __init__(self, progress: Progress, packages: int, wheels: int):
        self.progress, self.packages, self.wheels = progress, packages, wheels
        self.tail: deque[str] = deque(maxlen=25)
        self.phase: _Phase | None = None
        self.name = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        # Each package is unpacked once and configured once.
        self._enter("unpack Debian packages", 2 * self.packages, "steps")
        try:
            yield
        except BaseException as exc:
            if self.phase is not None:
                self.phase.context.__exit__(type(exc), exc, exc.__traceback__)
            raise
        self._leave()

    def hear(self, line: str) -> None:
        words = line.split()
        if not words:
            return
        if words[0] in ("Unpacking", "Setting") and self.phase is not None:
            self.phase.stage.advance(1)
            self.phase.stage.note(words[2] if words[0] == "Setting" else words[1])
        elif words[0] == "fairlead-wheels" and self.phase is not None:
            self._enter("install wheels", self.wheels, "wheels")
            self.phase.stage.advance(int(words[1]))
        elif words[0] == "fairlead-compiling":
            self._enter("compile Python modules")
        elif words[0] == "fairlead-tree-bytes":
            # A tar has a header of 512 bytes a file and rounds up: about a tenth more.
            self._enter("squash", int(words[1]) * 1.05, "B")
        else:
            if not re.match(r"Get:|Selecting |Preparing |\(Reading|Fetched|I: ", line):
                self.tail.append(line)
            return

    def squashed(self, amount: int) -> None:
        if self.phase is not None:
            self.phase.stage.advance(amount)

    def _enter(self, title: str, total: float | None = None, unit: str = "") -> None:
        if title == self.name:
            return
        self._leave()
        context = self.progress.stage(title, total, unit)
        self.phase, self.name = _Phase(context.__enter__(), context), title

    def _leave(self) -> None:
        if self.phase is not None:
            self.phase.context.__exit__(None, None, None)
            self.phase = None
