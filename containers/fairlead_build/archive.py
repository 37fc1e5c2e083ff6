"""The very files of locks, kept by a site: mirrors move on, and an old image must still be built.

::

    sha256/HASH     every file, under its own hash
    index.tsv       what each of them is, for people

A build takes from an archive what its store lacks, before it asks any index, so lock and archive
together need no network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from fairlead.findings import fail
from fairlead.paths import atomic_write
from fairlead.progress import Progress, Stage
from fairlead_build.lock import Package
from fairlead_build.store import Cache, missing, need_space, publish

_HEAD = ("sha256", "bytes", "file", "name", "version", "index", "recipe")


def blob(archive: Path, sha256: str) -> Path:
    """Where an archive has the file with this hash."""
    return archive / "sha256" / sha256


def bring(packages: Iterable[Package], cache: Cache, progress: Progress) -> None:
    """Takes what the store lacks, and the cache's archive has, into the store.

    Raises:
        FairleadError: there is no such archive, or a file in it has changed.
    """
    if cache.archive is None:
        return
    if not (cache.archive / "sha256").is_dir():
        raise fail(
            "this is no archive",
            where=str(cache.archive),
            why="there is no folder `sha256` in it",
            remedy=f"fairlead recipe lock RECIPE --archive {cache.archive}",
            check="archive",
        )
    there = [p for p in missing(packages, cache) if blob(cache.archive, p.sha256).is_file()]
    if not there:
        return
    with progress.stage("take files from the archive", sum(p.size for p in there), "B") as stage:
        for package in {p.sha256: p for p in there}.values():
            stage.note(package.name)
            partial = cache.partial(package.sha256)
            _copy(blob(cache.archive, package.sha256), partial, package, stage)
            publish(partial, cache.blob(package.sha256))
        stage.result(f"{len(there)} files")


def keep(
    packages: Iterable[Package], recipe: str, cache: Cache, archive: Path, progress: Progress
) -> int:
    """Puts files into an archive; all of them must be in the store.

    Args:
        recipe: what they are for; for the index.
    Returns:
        How many it did not have yet.
    Raises:
        FairleadError: the archive cannot be written to, or a file in the store has changed.
    """
    packages = list(packages)
    new = [p for p in packages if not blob(archive, p.sha256).is_file()]
    size = sum(p.size for p in new)
    try:
        (archive / "sha256").mkdir(parents=True, exist_ok=True)
        need_space(archive, size, "the archive", "--archive")
        with progress.stage("keep the files", size, "B") as stage:
            for package in {p.sha256: p for p in new}.values():
                stage.note(package.name)
                final = blob(archive, package.sha256)
                partial = final.with_name(f".{final.name}.partial")
                _copy(cache.blob(package.sha256), partial, package, stage)
                publish(partial, final)
            _write_index(archive, packages, recipe)
            stage.result(f"{len(new)} new files")
    except OSError as exc:
        raise fail(
            "the archive cannot be written to",
            where=str(archive),
            why=exc.strerror or str(exc),
            remedy="give a folder of yours with --archive",
            check="archive-unwritable",
        ) from None
    return len(new)


def _copy(source: Path, target: Path, package: Package, stage: Stage) -> None:
    digest = hashlib.sha256()
    with source.open("rb") as given, target.open("wb") as out:
        while chunk := given.read(1 << 20):
            digest.update(chunk)
            out.write(chunk)
            stage.advance(len(chunk))
    if digest.hexdigest() == package.sha256:
        target.chmod(0o644)
        return
    target.unlink()
    raise fail(
        f"the file of {package.name} {package.version} has changed since it was kept",
        where=str(source),
        why=f"its sha256 is now {digest.hexdigest()}",
        remedy=f"put it back from a copy, or remove it: `rm {source}`; then it is downloaded again",
        check="archive-rotten",
    )


def _write_index(archive: Path, packages: Iterable[Package], recipe: str) -> None:
    path = archive / "index.tsv"
    rows: set[tuple[str, ...]] = set()
    if path.is_file():
        rows = {tuple(line.split("\t")) for line in path.read_text("utf-8").splitlines()[1:]}
    rows |= {_row(package, recipe) for package in packages}
    with atomic_write(path, "w") as out:
        for row in (_HEAD, *_sorted(rows)):
            out.write("\t".join(row) + "\n")


def _row(package: Package, recipe: str) -> tuple[str, ...]:
    told = package.model_dump()
    file = str(told.get("file") or told["path"]).rsplit("/", 1)[-1]
    return (
        package.sha256,
        str(package.size),
        file,
        package.name,
        package.version,
        package.index,
        recipe,
    )


def _sorted(rows: Iterable[tuple[str, ...]]) -> Sequence[tuple[str, ...]]:
    return sorted(rows, key=lambda row: (row[3:], row))
