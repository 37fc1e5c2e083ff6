"""Brings what a lock names into the store: debs by apt's own downloader, wheels by pip.

Both are asked because they know this machine's mirrors, proxies, certificates and passwords. What
they bring is believed only after its hash was checked.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from fairlead.findings import FairleadError, fail
from fairlead.progress import Progress
from fairlead_build.aptsources import AptSource, debian_sources
from fairlead_build.lock import Deb, Lock, Package, Wheel
from fairlead_build.proc import run, tool
from fairlead_build.store import Cache, adopt, need_space, workspace

# Few enough that an interrupted download loses little, enough to keep the connections busy.
_BATCH = 24


P = TypeVar("P", bound=Package)


def missing(packages: Iterable[P], cache: Cache) -> list[P]:
    """What of a lock is not in the store yet."""
    return [p for p in packages if not cache.blob(p.sha256).is_file()]


def fetch(lock: Lock, target: Sequence[str], cache: Cache, progress: Progress, given: str) -> None:
    """Completes the store for ``lock``.

    Args:
        target: pip's options that describe the image (``resolve.target_of``).
        given: what the user called the recipe; for remedies.
    Raises:
        FairleadError: a file has vanished from its index, has another hash, or there is no room.
    """
    debs, wheels = missing(lock.deb, cache), missing(lock.wheel, cache)
    need = sum(p.size for p in debs) + sum(p.size for p in wheels)
    if need:
        need_space(cache.root, need + (16 << 20), "the downloads", "XDG_CACHE_HOME")
    if debs:
        fetch_debs(debs, lock, cache, progress, given)
    if wheels:
        fetch_wheels(wheels, target, cache, progress, given)


def fetch_debs(
    debs: Sequence[Deb], lock: Lock, cache: Cache, progress: Progress, given: str
) -> None:
    """Downloads .debs from this machine's mirror of their index."""
    sources = debian_sources(lock.inputs.suite, lock.inputs.components)
    with progress.stage("download Debian packages", sum(d.size for d in debs), "B") as stage:
        for start in range(0, len(debs), _BATCH):
            batch = debs[start : start + _BATCH]
            stage.note(batch[0].name)
            with workspace(cache.root / "work", "debs-") as folder:
                with _watching(folder, stage.advance):
                    _download_debs(batch, sources, folder, given)
                for deb in batch:
                    adopt(
                        cache,
                        folder / deb.file,
                        deb.sha256,
                        deb.size,
                        f"Debian package {deb.name}",
                        f"fairlead recipe lock {given}",
                    )
        stage.result(f"{len(debs)} packages, {sum(d.size for d in debs) / 1e6:.0f} MB")


def _download_debs(
    batch: Sequence[Deb], sources: Sequence[AptSource], folder: Path, given: str
) -> None:
    refused = ""
    for source in sources:
        uri = source.uri.replace("file:", "copy:", 1)  # apt only links to what file: names
        argv: list[str | Path] = [
            tool("apt-helper"),
            "-o",
            "APT::Sandbox::User=root",
            "download-file",
        ]
        for deb in batch:
            if not (folder / deb.file).is_file():
                argv += [
                    f"{uri}/{deb.path.replace('+', '%2b')}",
                    folder / deb.file,
                    f"SHA256:{deb.sha256}",
                ]
        said: list[str] = []
        try:
            run(
                argv,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                doing="download Debian packages",
                remedy="run the same command again",
                on_line=said.append,
            )
            return
        except FairleadError:
            text = "\n".join(said)
            if not re.search(
                r"404|Not Found|File not found|Failed to stat|Hash Sum mismatch", text
            ):
                raise
            refused = "\n".join(line for line in said if line.startswith(("E:", "Err:", "  ")))[
                -800:
            ]
    lost = [deb for deb in batch if not (folder / deb.file).is_file()]
    raise fail(
        f"Debian package {lost[0].name} {lost[0].version} cannot be had any more"
        if lost
        else "Debian packages cannot be downloaded",
        where=f"{batch[0].index}, by {', '.join(s.origin for s in sources)}",
        why="mirrors drop old versions at each point release"
        + (f":\n{refused}" if refused else ""),
        remedy=f"fairlead recipe lock {given}",
        check="deb-vanished",
    )


@contextmanager
def _watching(folder: Path, advance: Callable[[float], None]) -> Iterator[None]:
    """Reports the growth of a folder: apt's downloader has no progress for pipes."""
    done = threading.Event()
    seen = 0

    def look() -> None:
        nonlocal seen
        now = sum(path.stat().st_size for path in folder.glob("*.deb") if path.is_file())
        advance(now - seen)
        seen = now

    def watch() -> None:
        while not done.wait(0.2):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    look()


def pip() -> list[str | Path]:
    """The pip of this Python, talking only about its work."""
    # -P: the folder one stands in may hold a json.py.
    return [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input"]


def pip_environment() -> dict[str, str]:
    """This machine's environment and pip configuration, without what would change the result."""
    left_out = (
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "PIP_REQUIREMENT",
        "PIP_CONSTRAINT",
        "PIP_NO_BINARY",
    )
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}


def fetch_wheels(
    wheels: Sequence[Wheel], target: Sequence[str], cache: Cache, progress: Progress, given: str
) -> dict[str, int]:
    """Downloads wheels from wherever this machine's pip finds PyPI.

    Returns:
        Bytes of each, by sha256.
    Raises:
        FairleadError: one is gone or differs.
    """
    absent = missing(wheels, cache)
    if absent:
        known = sum(w.size for w in absent if w.size > 1)
        with (
            progress.stage("download wheels", known or None, "B") as stage,
            workspace(cache.root / "work", "wheels-") as folder,
        ):
            # One call a role: the installer's pip may also be an ordinary dependency's version.
            for role in ("python", "mpi", "installer"):
                wanted = [w for w in absent if w.role == role]
                if wanted:
                    _download_wheels(wanted, target, folder, stage.advance, stage.note, given)
            for wheel in absent:
                size = wheel.size if wheel.size > 1 else None
                adopt(
                    cache,
                    folder / wheel.file,
                    wheel.sha256,
                    size,
                    f"wheel {wheel.name}",
                    f"fairlead recipe lock {given}",
                )
            stage.result(f"{len(absent)} wheels")
    return {w.sha256: cache.blob(w.sha256).stat().st_size for w in wheels}


def _download_wheels(
    wheels: Sequence[Wheel],
    target: Sequence[str],
    folder: Path,
    advance: Callable[[float], None],
    note: Callable[[str], None],
    given: str,
) -> None:
    pins = folder / "requirements.txt"
    pins.write_text("".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in wheels))
    so_far = 0

    def read(line: str) -> None:
        nonlocal so_far
        if match := re.match(r"Progress (\d+) of \d+", line):
            now = int(match[1])
            advance(now - so_far if now >= so_far else now)
            so_far = now
        elif match := re.match(r"\s*(?:Downloading|Using cached) (\S+)", line):
            so_far = 0
            note(match[1].rsplit("/", 1)[-1])

    argv = [
        *pip(),
        "download",
        "--no-deps",
        "--require-hashes",
        "--progress-bar",
        "raw",
        *target,
        "--dest",
        folder,
        "-r",
        pins,
    ]
    run(
        argv,
        env=pip_environment(),
        doing="download the wheels that the lock names",
        remedy=f"run the same command again; if a wheel has vanished, `fairlead recipe lock {given}`",
        on_line=read,
    )
