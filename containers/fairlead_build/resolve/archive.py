"""The very files of locks, kept by a site: mirrors move on, and an old image must still be built.

::

    sha256/HASH     every file, under its own hash
    index.tsv       what each of them is, for people

A build takes from an archive what its store lacks, before it asks any index or registry, so lock
and archive together need no network. A base image is there as its manifest, configuration and
layers; all of them are blobs that its digest leads to.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.errors import FairleadError, Finding, fail, os_error_as, warning
from fairlead.base.paths import atomic_write
from fairlead.base.progress import Progress, Stage
from fairlead_build.base.digest import copy_file
from fairlead_build.cache.store import Cache, need_space, publish
from fairlead_build.recipe.lock import Package

_HEAD = ("sha256", "bytes", "file", "name", "version", "index", "recipe")


@dataclass(frozen=True)
class Kept:
    """One file of an archive; ``size`` in bytes."""

    sha256: str
    size: int
    file: str
    name: str
    version: str
    index: str

    @classmethod
    def of(cls, package: Package) -> Kept:
        fields = package.model_dump()
        file = str(fields.get("file") or fields["path"]).rsplit("/", 1)[-1]
        sha256, size = package.sha256, package.size
        return cls(sha256, size, file, package.name, package.version, package.index)


def blob(archive: Path, sha256: str) -> Path:
    """Where an archive has the file with this hash."""
    return archive / "sha256" / sha256


def bring(files: Iterable[Kept], cache: Cache, progress: Progress) -> None:
    """Takes what the store lacks, and the cache's archive has, into the store.

    Raises:
        FairleadError: there is no such archive, or a file in it has changed.
    """
    absent = {f.sha256: f for f in files if not cache.blob(f.sha256).is_file()}
    if cache.archive is None or not absent:
        return
    if not (cache.archive / "sha256").is_dir():
        raise fail("archive", archive=cache.archive)
    available = [f for f in absent.values() if blob(cache.archive, f.sha256).is_file()]
    if not available:
        return
    with progress.stage(
        "take files from the archive", sum(f.size for f in available), "B"
    ) as stage:
        for file in available:
            stage.note(file.name)
            partial = cache.partial(file.sha256)
            _copy(blob(cache.archive, file.sha256), partial, file, stage)
            publish(partial, cache.blob(file.sha256))
        stage.result(f"{len(available)} files")


def kept_in(named: Path | None, cache: Cache) -> tuple[Path | None, tuple[Finding, ...]]:
    """The archive that a new lock's files go into: one that is named, or the cache's.

    A build after the lock takes its files from there, so it must be as new as the lock. Of the cache's, that may belong
    to others, only a warning is made where it cannot be written.

    Returns:
        None where there is none, or none that can be written; and the warning.
    """
    if named is not None or cache.archive is None:
        return named, ()
    archive = cache.archive
    there = next(path for path in (archive / "sha256", archive, *archive.parents) if path.exists())
    if os.access(there, os.W_OK | os.X_OK):
        return archive, ()
    return None, (warning("archive-behind", archive=archive),)


def check_writable(archive: Path) -> None:
    """Refuses an archive that could take nothing once everything is there; makes it.

    Raises:
        FairleadError: it cannot be written to.
    """
    with os_error_as("archive-unwritable", archive=archive):
        (archive / "sha256").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=archive / "sha256"):
            pass


def keep(
    files: Iterable[Kept],
    recipe: str,
    archive: Path,
    progress: Progress,
    path_of: Callable[[str], Path],
) -> int:
    """Puts files into an archive.

    Args:
        recipe: what they are for; for the index.
        path_of: where the file with a hash is now.
    Returns:
        How many it did not have yet.
    Raises:
        FairleadError: the archive cannot be written to, or a file is not what it was.
    """
    files = list(files)
    new = {f.sha256: f for f in files if not blob(archive, f.sha256).is_file()}.values()
    size = sum(f.size for f in new)
    with os_error_as("archive-unwritable", archive=archive):
        (archive / "sha256").mkdir(parents=True, exist_ok=True)
        need_space(archive, size, "the archive", "--archive")
        with progress.stage(f"keep the files of {recipe}", size, "B") as stage:
            for file in new:
                stage.note(file.name)
                final = blob(archive, file.sha256)
                partial = final.with_name(f".{final.name}.partial")
                _copy(path_of(file.sha256), partial, file, stage)
                publish(partial, final)
            _write_index(archive, files, recipe)
            stage.result(f"{len(new)} new files")
    return len(new)


def _copy(source: Path, target: Path, file: Kept, stage: Stage) -> None:
    if (digest := copy_file(source, target, stage.advance)) != file.sha256:
        target.unlink()
        raise rotten(f"{file.name} {file.version}", source, f"sha256:{digest}")


def rotten(name: str, source: Path, digest: str) -> FairleadError:
    """A kept file is not what its name says."""
    return fail("archive-rotten", name=name, source=source, digest=digest)


def _write_index(archive: Path, files: Iterable[Kept], recipe: str) -> None:
    path = archive / "index.tsv"
    rows: set[tuple[str, ...]] = set()
    if path.is_file():
        rows = {tuple(line.split("\t")) for line in path.read_text("utf-8").splitlines()[1:]}
    rows |= {(f.sha256, str(f.size), f.file, f.name, f.version, f.index, recipe) for f in files}
    with atomic_write(path, "w") as out:
        for row in (_HEAD, *sorted(rows, key=lambda row: (row[3:], row))):
            out.write("\t".join(row) + "\n")
