"""Brings what a lock names into the store: from the archive, else each thing from its index.

apt and pip are asked for .debs and wheels, because these know this machine's mirrors, proxies,
certificates and passwords; source archives are downloaded here. What any of them brings is believed
only after its hash was checked.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Progress, Stage
from fairlead_build.base import pace
from fairlead_build.base.proc import run, tool
from fairlead_build.cache.store import Cache, adopt, missing, need_space, workspace
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import AptIndex, Deb, Lock, Package, SourceArchive, Wheel
from fairlead_build.resolve import archive
from fairlead_build.resolve.apt_sources import AptSource, apt_sources
from fairlead_build.resolve.pip import (
    PYPI,
    Target,
    further_places,
    pip,
    pip_environment,
    place_of,
    run_pip,
    settings,
    target_of,
    variable_of,
)
from fairlead_build.resolve.sources import Place, download, source_archive

# Few enough that an interrupted download loses little, enough to keep the connections busy.
_BATCH = 24
Role = Literal["python", "mpi", "installer", "build"]


def fetch(
    loaded: LoadedRecipe,
    lock: Lock,
    cache: Cache,
    progress: Progress,
    packages: Sequence[Package] | None = None,
) -> None:
    """Completes the store for ``lock``.

    Args:
        packages: of the lock; all of them without it.
    Raises:
        FairleadError: a file has vanished from its index, has another hash, or there is no room.
    """
    absent = missing(lock.packages if packages is None else packages, cache)
    if not absent:
        return
    need = sum(p.size for p in absent)
    need_space(cache.root, need + (16 << 20), "the downloads", "XDG_CACHE_HOME")
    archive.bring(map(archive.Kept.of, absent), cache, progress)
    debs = [package for package in absent if isinstance(package, Deb)]
    fetch_debs(debs, cache, progress, f"fairlead recipe lock {loaded.given}")
    if wheels := missing(lock.wheel, cache):
        target = target_of(lock.inputs.python, lock.architecture, lock.glibc)
        wanted = [Wanted.of(wheel) for wheel in wheels]
        fetch_wheels(wanted, target, cache, progress, loaded.given)
    if sources := missing(lock.source, cache):
        fetch_sources(sources, loaded, cache, progress)


# --- Debian packages -------------------------------------------------------------------------------


def fetch_debs(debs: Sequence[Deb], cache: Cache, progress: Progress, relock: str) -> None:
    """Brings .debs from the archive, or from this machine's mirrors of their indexes.

    Args:
        relock: the command that chooses other packages; for remedies.
    Raises:
        FairleadError: one has vanished from its index, or has another hash.
    """
    archive.bring(map(archive.Kept.of, debs), cache, progress)
    debs = missing(debs, cache)
    if not debs:
        return
    with progress.stage("download Debian packages", sum(d.size for d in debs), "B") as stage:
        by_index = sorted(debs, key=lambda d: d.index)
        for name, group in itertools.groupby(by_index, key=lambda d: d.index):
            wanted = list(group)
            index = AptIndex.parse(name)
            assert index is not None, name  # the lock's model has checked it
            sources = apt_sources(index)
            for start in range(0, len(wanted), _BATCH):
                batch = wanted[start : start + _BATCH]
                stage.note(batch[0].name)
                with workspace(cache.root / "work", "debs-") as folder:
                    with _watching(folder, stage.advance):
                        _download_debs(batch, sources, folder, relock)
                    for deb in batch:
                        file, what = folder / deb.file, f"Debian package {deb.name}"
                        adopt(cache, file, deb.sha256, deb.size, what, relock)
        stage.result(f"{len(debs)} packages, {sum(d.size for d in debs) / 1e6:.0f} MB")


def _download_debs(
    batch: Sequence[Deb], sources: Sequence[AptSource], folder: Path, relock: str
) -> None:
    refused = ""
    remaining = list(batch)
    for source in sources:
        uri = source.uri.replace("file:", "copy:", 1)  # apt only links to what file: names
        argv = [tool("apt-helper"), "-o", "APT::Sandbox::User=root", "download-file"]
        for deb in remaining:
            address = f"{uri}/{deb.path.replace('+', '%2b')}"
            argv += [address, str(folder / deb.file), f"SHA256:{deb.sha256}"]
        output: list[str] = []
        doing, remedy = "download Debian packages", "run the same command again"
        env = {**os.environ, "LC_ALL": "C.UTF-8"}
        try:
            watch = partial(pace.kept_up, folder=folder, where=source.uri)
            run(argv, env=env, doing=doing, remedy=remedy, on_line=output.append, watch=watch)
            return
        except FairleadError as exc:
            if (
                exc.findings[0].check == pace.CHECK
            ):  # apt says of what was ended that it is not there
                raise
            gone = r"404|Not Found|File not found|Failed to stat|Hash Sum mismatch"
            if not re.search(gone, "\n".join(output)):
                raise
        errors = [line for line in output if line.startswith(("E:", "Err:", "  "))]
        refused = ":\n" + "\n".join(errors)[-800:] if errors else ""
        remaining = [deb for deb in batch if not (folder / deb.file).is_file()]
    shown = ", ".join(s.origin for s in sources)
    given: dict[str, Any] = {"index": batch[0].index, "sources": shown}
    given |= {"refused": refused, "relock": relock}
    if not remaining:
        raise fail("deb-vanished-packages-cannot-downloaded", **given)
    raise fail("deb-vanished-package-no-longer-available", lost=remaining[0], **given)


@contextmanager
def _watching(folder: Path, advance: Callable[[float], None]) -> Iterator[None]:
    """Reports the growth of a folder: apt's downloader has no progress for pipes."""
    done = threading.Event()
    reported = 0

    def look() -> None:
        nonlocal reported
        now = sum(path.stat().st_size for path in folder.glob("*.deb") if path.is_file())
        advance(now - reported)
        reported = now

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


# --- wheels ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """A wheel to download. ``size`` is None until the file is here: pip's report lacks it."""

    name: str
    version: str
    file: str
    sha256: str
    index: str
    role: Role
    size: int | None = None

    @classmethod
    def of(cls, wheel: Wheel) -> Wanted:
        """A wheel of a lock."""
        return cls(**wheel.model_dump())


def fetch_wheels(
    wheels: Sequence[Wanted], target: Target, cache: Cache, progress: Progress, given: str
) -> None:
    """Downloads wheels.

    Args:
        target: the image.
        given: what the user called the recipe; for remedies.
    Raises:
        FairleadError: one is gone or differs, or this machine does not know where its index is.
    """
    sizes = [w.size for w in wheels]
    total = sum(size or 0 for size in sizes) if None not in sizes else None
    with (
        progress.stage("download wheels", total, "B") as stage,
        workspace(cache.root / "work", "wheels-") as folder,
    ):
        # One call a role: the installer's pip may also be an ordinary dependency's version.
        for role in ("python", "mpi", "installer", "build"):
            wanted = [w for w in wheels if w.role == role]
            if wanted:
                _download_wheels(wanted, target, folder, stage, given)
        for wheel in {w.sha256: w for w in wheels}.values():
            file, relock = folder / wheel.file, f"fairlead recipe lock {given}"
            adopt(cache, file, wheel.sha256, wheel.size, f"wheel {wheel.name}", relock)
        stage.result(f"{len(wheels)} wheels")


def _download_wheels(
    wheels: Sequence[Wanted], target: Target, folder: Path, stage: Stage, given: str
) -> None:
    pins = folder / "requirements.txt"
    pins.write_text(
        "".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in wheels), "utf-8"
    )
    so_far, lost = 0, ""

    def read(line: str) -> None:
        nonlocal so_far, lost
        if match := re.match(r"Progress (\d+) of \d+", line):
            now = int(match[1])
            stage.advance(now - so_far if now >= so_far else now)
            so_far = now
        elif match := re.match(r"\s*(?:Downloading|Using cached) (\S+)", line):
            so_far = 0
            stage.note(match[1].rsplit("/", 1)[-1])
        elif match := re.search(r"No matching distribution found for ([A-Za-z0-9._-]+)==", line):
            lost = match[1]

    argv = [
        *pip(target), "download", "--no-deps", "--require-hashes", "--progress-bar", "raw",
        *further_places(w.index for w in wheels), *target.options, "--dest", folder, "-r", pins,
    ]  # fmt: skip
    doing = "download the wheels that the lock names"
    remedy = f"run the same command again; if a wheel has vanished, `fairlead recipe lock {given}`"
    env = {**pip_environment(), "TMPDIR": str(folder)}
    try:
        run_pip(argv, env=env, doing=doing, remedy=remedy, on_line=read)
    except FairleadError:
        wheel = next((w for w in wheels if w.name == lost), None)
        if wheel is None:
            raise
        raise _vanished(wheel, given) from None


def _vanished(wheel: Wanted, given: str) -> FairleadError:
    if wheel.index == PYPI:
        return fail("wheel-vanished-configuration", wheel=wheel, given=given)
    if place_of(wheel.index) is None:
        return unset(wheel.index, f"wheel {wheel.name} {wheel.version}")
    return fail("wheel-vanished", wheel=wheel, variable=variable_of(wheel.index), given=given)


def unset(index: str, what: str) -> FairleadError:
    """Nothing says where ``index`` is, and pip's own places do not have ``what``."""
    return fail("index-place-unknown", index=index, variable=variable_of(index), what=what)


# --- sources ---------------------------------------------------------------------------------------


def fetch_sources(
    sources: Sequence[SourceArchive], loaded: LoadedRecipe, cache: Cache, progress: Progress
) -> None:
    """Downloads source archives: from their index, or from the address that the recipe names."""
    remedy = f"fairlead recipe lock {loaded.given}"
    urls = {s.source.name: s.source.url or "" for s in loaded.sources}
    known = settings()
    with progress.stage("download sources", sum(s.size for s in sources), "B") as stage:
        for source in sources:
            stage.note(source.file)
            if source.index == PYPI:
                address = source_archive(source.name, source.version, known, remedy).address
            else:
                address = urls[source.name]
            partial = cache.partial(source.sha256)
            download(Place(address, known.certificates), partial, stage.advance)
            adopt(cache, partial, source.sha256, source.size, f"source {source.name}", remedy)
        stage.result(f"{len(sources)} archives")
