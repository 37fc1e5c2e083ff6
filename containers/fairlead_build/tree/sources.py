"""What a recipe builds from source: each ``[[source]]`` becomes a wheel, or a tar of its files.

They are built in a tree that also holds what only a build needs (``lock.build_deb``, wheels of role
``build``), cut off from the network, in a fixed folder and at a fixed time (``source_in_sandbox.py``).
Only the result is kept, in the cache under a key of all it was made from; the image never sees a
compiler.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, fail
from fairlead_build.base.digest import json_digest, sha256_of
from fairlead_build.base.progress_protocol import Phases, stdout_of
from fairlead_build.cache.store import check_blob, scratch_parent, workspace
from fairlead_build.recipe.load import LoadedRecipe, RecipeSource, file_name
from fairlead_build.recipe.lock import Lock, SourceArchive, Wheel
from fairlead_build.tree.debian import INSIDE, debian_key, debian_tree
from fairlead_build.tree.job import TreeJob
from fairlead_build.tree.sandbox import sandbox
from fairlead_build.tree.wheel import pack
from fairlead_build.tree.wheel_staging import Built, plan_of, request, stage_wheels, variables_of

# Variables that are the same in every build.
_FIXED = {"LC_ALL": "C", "TZ": "UTC", "HOME": "/nonexistent", "PYTHONHASHSEED": "0"}
_HOW = ("../base/jail.py", "sandbox.py", "sources.py", "source_in_sandbox.py", "wheel.py")


def keys(loaded: LoadedRecipe, lock: Lock, wanted: Sequence[RecipeSource]) -> list[str]:
    """A key for each source, in their order: a later one may use an earlier one's result.

    Args:
        wanted: ``loaded.sources``, or what :func:`compiled_bundled` gives.
    """
    if not wanted:
        return []
    package = Path(__file__).parent
    inputs: dict[str, Any] = {
        "debian": debian_key((*lock.deb, *lock.build_deb), lock),
        "wheels": sorted([w.role, w.sha256] for w in _wheels(lock, wanted)),
        "prefixes": plan_of(loaded),
        "how": [sha256_of(p) for p in (*sorted(INSIDE.glob("*.py")), *(package / n for n in _HOW))],
    }
    keys_so_far: list[str] = []
    for source in wanted:
        archive = _archive(source, lock)
        inputs |= {
            "source": source.digest,
            "archive": archive.sha256 if archive else "",
            "before": list(keys_so_far),
        }
        keys_so_far.append(json_digest(inputs))
    return keys_so_far


def compiled_bundled(loaded: LoadedRecipe, lock: Lock) -> tuple[RecipeSource, ...]:
    """Those of fairlead's own sources that our wheel has not compiled: what a recipe compiles by commands of its own.

    Over an image of a registry nothing is compiled.
    """
    if lock.base is not None:
        return ()
    return tuple(s for s in loaded.bundled if not s.core_from_wheel)


def _wheels(lock: Lock, wanted: Sequence[RecipeSource]) -> tuple[Wheel, ...]:
    """The wheels that ``wanted`` are built with; fairlead's own use none."""
    return () if all(source.source.bundled is not None for source in wanted) else lock.wheel


def _archive(source: RecipeSource, lock: Lock) -> SourceArchive | None:
    if source.source.path is not None or source.source.bundled is not None:
        return None
    return next(a for a in lock.source if a.name == source.source.name)


def build_sources(job: TreeJob, wanted: Sequence[RecipeSource]) -> tuple[Built, ...]:
    """The results of sources, from the cache or built now, from the store alone.

    Args:
        wanted: as for :func:`keys`.
    Raises:
        FairleadError: a source is hostile, a patch does not apply, a build fails; with the last
            lines of its log and where the whole log is.
    """
    folders = [job.cache.source(key) for key in keys(job.loaded, job.lock, wanted)]
    if not all(map(Path.is_dir, folders)):
        _build(job, list(zip(wanted, folders, strict=True)))
    return tuple(map(Built, folders))


def _build(job: TreeJob, wanted: Sequence[tuple[RecipeSource, Path]]) -> None:
    lock, cache = job.lock, job.cache
    declared = [source for source, _ in wanted]
    debs, wheels = (*lock.deb, *lock.build_deb), _wheels(lock, declared)
    size = 5 * sum(p.size for p in (*debs, *lock.wheel)) + 20 * sum(s.size for s in lock.source)
    below = debian_tree(debs, job)
    with (
        workspace(scratch_parent(size + (1 << 30)), "fairlead-") as scratch,
        workspace(cache.root / "work", "sources-") as work,
    ):
        with job.progress.stage("check packages", None) as stage:
            shown = stage_wheels(wheels, (), job, scratch, stage)
        results = scratch / "results"
        results.mkdir()
        asked = {
            **request(job, below, scratch, "stage", "given", wheels=shown),
            "python": bool(wheels),
            "sources": [
                _request(number, source, folder, job, scratch)
                for number, (source, folder) in enumerate(wanted)
            ],
            "results": str(results),
        }
        phases = _Builds(job.progress, results)
        with (
            phases.open(),
            sandbox("fairlead_build.tree.source_in_sandbox", asked, scratch) as process,
        ):
            for _ in stdout_of(process, phases.feed):
                pass
            code = process.wait()
            for number, (_, folder) in enumerate(wanted):
                if (results / str(number) / "done").is_file():
                    _keep(results / str(number), work / str(number), folder)
            if code:
                raise _failed(job, [s for s, _ in wanted], results, phases, code)


class _Builds(Phases):
    """Also notes which step of which source failed."""

    stopped: tuple[str, ...] = ()

    def feed(self, line: str) -> None:
        if line.startswith("fairlead-failed\t"):
            self.stopped = tuple(line.split("\t")[1:])
        else:
            super().feed(line)


def _request(
    number: int, source: RecipeSource, result: Path, job: TreeJob, scratch: Path
) -> dict[str, Any]:
    """One source as ``source_in_sandbox.py`` wants it; the recipe's files go to ``given/``."""
    given = scratch / "given" / str(number)
    (given / "tree").mkdir(parents=True)
    for file in source.tree:
        target = given / "tree" / file.target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.source, target)
        target.chmod(file.mode)
    for position, patch in enumerate(source.patches):
        shutil.copyfile(patch.source, given / f"{position}.patch")
    declared, archive = source.source, _archive(source, job.lock)
    return {
        "name": declared.name,
        "version": declared.version,
        "done": Built(result).staged(scratch / "stage") if result.is_dir() else "",
        "archive": str(check_blob(job.cache, archive.sha256)) if archive else "",
        "file": archive.file if archive else "",
        "patches": [patch.target for patch in source.patches],
        "run": declared.run,
        "env": {
            **variables_of(job.loaded.recipe),
            "JOBS": str(len(os.sched_getaffinity(0))),
            "SOURCE_DATE_EPOCH": str(job.lock.source_date_epoch),
            **_FIXED,
            **declared.env,
        },
    }


def _failed(
    job: TreeJob, wanted: Sequence[RecipeSource], results: Path, phases: _Builds, code: int
) -> FairleadError:
    """The error of a build; its log is kept."""
    if phases.no_space or len(phases.stopped) != 3:
        doing = "build from source"
        return phases.failed(["source_in_sandbox"], code, doing, job.again)
    number, step, detail = phases.stopped
    source = wanted[int(number)].source
    log = results / number / "build.log"
    kept = job.cache.root / "sources" / f"{file_name(job.loaded.name)}-{source.name}.log"
    where = f"[[source]] {source.name} of {job.loaded.folder / 'recipe.toml'}"
    if log.is_file():
        shutil.copyfile(log, kept)
        where += f"; the whole log: {kept}"
    why = "\n".join(phases.tail) or f"its commands ended with exit code {code}"
    given: dict[str, Any] = {"source": source, "where": where, "again": job.again}
    match step:
        case "hostile":
            return fail("source-hostile", detail=detail, **given)
        case "patch":
            return fail("source-patch", detail=detail, why=why, **given)
        case "empty":
            return fail("source-empty", why=why, **given)
    return fail("source-build", why=why, **given)


def _keep(made: Path, staging: Path, final: Path) -> None:
    """Gives a result its final name, whole or not at all."""
    staging.mkdir()
    for wheel in made.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            files = [item for item in archive.infolist() if not item.is_dir()]
            members = {item.filename: archive.read(item) for item in files}
        programs = frozenset(i.filename for i in files if i.external_attr >> 16 & 0o111)
        (staging / wheel.name).write_bytes(pack(members, programs))
    for name in ("overlay.tar", "build.log"):
        if (made / name).is_file():
            shutil.copyfile(made / name, staging / name)
    for path in staging.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    try:
        staging.rename(final)
    except OSError:
        # Recipes that share a source may build it at once, each under its own lock; the key is
        # that of the result.
        if not final.is_dir():
            raise
