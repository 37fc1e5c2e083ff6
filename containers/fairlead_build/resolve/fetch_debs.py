"""Downloads .debs from this machine's mirrors, by apt's own downloader."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Progress
from fairlead_build.base.proc import run, tool
from fairlead_build.cache.store import Cache, adopt, missing, workspace
from fairlead_build.recipe.lock import AptIndex, Deb
from fairlead_build.resolve import archive
from fairlead_build.resolve.apt_sources import AptSource, apt_sources

# Few enough that an interrupted download loses little, enough to keep the connections busy.
_BATCH = 24


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
            run(argv, env=env, doing=doing, remedy=remedy, on_line=output.append)
            return
        except FairleadError:
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
