"""``fairlead build``: from a recipe and its lock to one deterministic image, stage by stage.

=======  ===================================================  =============================
stage    makes                                                read next
=======  ===================================================  =============================
fetch    every .deb and wheel of the lock, by hash            ``fetch.py``
tree     a squashfs of all that, without our own wheel        ``tree.py``
facts    what the planner must know; checked against itself   ``examine.py``, ``mpicheck.py``
payload  our wheel and the image's description over the tree  ``payload.py``
sif      the squashfs in a SIF                                ``sif.py``
others   the other formats that were asked for                ``formats.py``
index    the name under which ``fairlead run`` finds it       ``images.py``
=======  ===================================================  =============================

Each stage's result has a key made of all its inputs, and is kept in the cache under it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import fairlead
from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity, fail
from fairlead.base.progress import Progress, Silent
from fairlead.elf.facts import ImageFacts
from fairlead.image.packages import Installed
from fairlead_build.base.proc import no_space
from fairlead_build.cache.store import (
    Cache,
    holding,
    missing,
    need_space,
    scratch_parent,
    workspace,
)
from fairlead_build.cache.sweep import sweep, used
from fairlead_build.formats import formats as forms
from fairlead_build.formats.formats import Format
from fairlead_build.formats.images import ImageEntry, read_entry, trees_in_use, write_entry
from fairlead_build.formats.sif import write_sif
from fairlead_build.recipe.load import LoadedRecipe, load_recipe
from fairlead_build.recipe.lock import Lock, load_lock
from fairlead_build.resolve import fetch
from fairlead_build.tools import tool_tree
from fairlead_build.tools.versions import architecture
from fairlead_build.tree import engine_tree, payload, sources
from fairlead_build.tree.debian import debian_key
from fairlead_build.tree.mpi_check import image_findings
from fairlead_build.tree.payload import Description
from fairlead_build.tree.record import TreeRecord, read_record, write_record
from fairlead_build.tree.sbom import bill_of_materials
from fairlead_build.tree.tree import build_tree, tree_key
from fairlead_build.tree.tree_scan import examine
from fairlead_build.tree.wheel import own_wheel, runtime_requirements


@dataclass(frozen=True)
class StageState:
    """One stage of a build: whether it is done already."""

    name: str
    cached: bool
    detail: str


@dataclass(frozen=True)
class BuildResult:
    """What a build made, or would make.

    Attributes:
        entry: the image in the cache; None after a dry run that has none.
        cached: nothing had to be made.
        outputs: the files or folders of the chosen formats, in the same order.
        warnings: what does not stop a build, e.g. a name that meant another recipe until now.
    """

    recipe: str
    key: str
    cached: bool
    entry: ImageEntry | None
    outputs: tuple[Path, ...]
    stages: tuple[StageState, ...]
    warnings: tuple[Finding, ...]


@dataclass(frozen=True)
class _Job:
    """All that a build works from."""

    loaded: LoadedRecipe
    lock: Lock
    lock_sha256: str
    wheel: bytes | None
    wheel_sha256: str
    tree: str
    key: str
    cache: Cache

    @property
    def name(self) -> str:
        return self.loaded.name

    @property
    def again(self) -> str:
        return f"fairlead build {self.loaded.given}"


def build(
    recipe: str | Path,
    *,
    formats: Sequence[str] = ("sif",),
    progress: Progress | None = None,
    cache: Cache | None = None,
    output: Path | None = None,
    dry_run: bool = False,
) -> BuildResult:
    """Builds the image of a recipe, or finds it in the cache.

    Args:
        recipe: the name of a bundled recipe, or a recipe's folder.
        formats: of ``formats.FORMATS``.
        output: the name of a copy (one format only), or a folder that gets the copies.
        dry_run: only says what would be done.
    Raises:
        FairleadError: bad recipe or lock, a failed stage, or no room; whatever stage was finished
            is kept, and the same command goes on from there.
    """
    chosen = forms.chosen(formats, output)
    cache = cache or Cache.default()
    with _system_errors_named(cache):
        job = _prepare(load_recipe(recipe), cache)
    entry = _current(job)
    if dry_run:
        return BuildResult(
            job.name, job.key, entry is not None, entry, (), _stages(job, entry, chosen), ()
        )
    progress = progress or Silent()
    cached = entry is not None
    warnings: tuple[Finding, ...] = ()
    with _system_errors_named(cache):
        if entry is None:
            # One build of a recipe at a time; the next one is told whom it waits for.
            with holding(job.cache, f"recipe-{job.name}", _waiting(job, progress)):
                entry = _current(job)  # somebody else may have built it while we waited
                if entry is None:
                    warnings = _name_warnings(job)
                    entry = _make(job, progress)
        outputs = tuple(_output(job, entry, form, output, progress) for form in chosen)
    return BuildResult(
        job.name, job.key, cached, entry, outputs, _stages(job, entry, chosen), warnings
    )


@contextmanager
def _system_errors_named(cache: Cache) -> Iterator[None]:
    """What the system refuses in the cache, by its name: full, not to be written to, gone."""
    try:
        yield
    except FairleadError as exc:
        # A tool says in its own words that a file has gone; where all have, that is why.
        if exc.findings[0].check == "tool-failed" and not cache.root.is_dir():
            gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(cache.root))
            raise cache.removed(gone) from exc
        raise
    except OSError as exc:
        # A link that cannot be made is told by what it was to lead to, and by its own path.
        names = [Path(n) for n in (exc.filename, exc.filename2) if isinstance(n, str)]
        file = next((n for n in names if n.is_relative_to(cache.root)), names[0] if names else None)
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space("build the image", file.parent if file else cache.root) from None
        if exc.errno in (errno.EROFS, errno.EACCES) and file and file.is_relative_to(cache.root):
            raise cache.unwritable(exc) from None
        if exc.errno == errno.ENOENT and file and file.is_relative_to(cache.root):
            raise cache.removed(exc) from None
        raise


def _prepare(loaded: LoadedRecipe, cache: Cache) -> _Job:
    python = loaded.recipe.python is not None
    lock, lock_sha256 = load_lock(loaded, runtime_requirements() if python else ())
    if lock.architecture != architecture():
        raise fail(
            f"the lock of recipe `{loaded.name}` is for {lock.architecture}, this machine is {architecture()}",
            where=str(loaded.lock_path),
            why="packages of one architecture cannot be installed on another",
            remedy=f"fairlead recipe lock {loaded.given}",
            check="architecture",
            code=ExitCode.USAGE,
        )
    if wrong := tool_tree.mismatch(lock, loaded.given, loaded.lock_path):
        raise FairleadError([wrong], ExitCode.USAGE)
    cache.make()
    wheel = own_wheel(cache) if python else None
    wheel_sha256 = hashlib.sha256(wheel).hexdigest() if wheel else ""
    tree = (engine_tree.tree_key if lock.base else tree_key)(loaded, lock)
    # The wheel holds the code that writes the payload; an image without Python has no wheel.
    told = [
        tree,
        loaded.digest,
        lock_sha256,
        wheel_sha256,
        fairlead.__version__,
        payload.SCHEMA_VERSION,
    ]
    key = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return _Job(loaded, lock, lock_sha256, wheel, wheel_sha256, tree, key, cache)


def _current(job: _Job) -> ImageEntry | None:
    entry = read_entry(job.cache, job.name)
    return entry if entry is not None and entry.key == job.key else None


def _stages(
    job: _Job, entry: ImageEntry | None, chosen: Sequence[Format]
) -> tuple[StageState, ...]:
    others = tuple(
        StageState(
            form,
            forms.is_kept(form, job.cache, job.key),
            str(forms.kept(form, job.cache, job.key)[0]),
        )
        for form in chosen
        if form != "sif"
    )
    if entry is not None:
        names = ("fetch", "tree", "facts", "payload", "sif")
        return (*(StageState(name, True, "") for name in names), *others)
    absent = missing(job.lock.packages, job.cache)
    record = read_record(job.cache, job.tree)
    tree = record is not None
    needed = not tree and bool(absent)
    size = sum(item.size for item in absent)
    return (
        StageState(
            "fetch", not needed, f"{len(absent)} files, {size / 1e6:.0f} MB" if needed else ""
        ),
        StageState(
            "tree", tree, f"{len(job.lock.deb)} Debian packages, {len(job.lock.wheel)} wheels"
        ),
        StageState(
            "facts",
            record is not None and record.facts is not None,
            "MPI libraries and who uses them",
        ),
        StageState("payload", False, "fairlead and the image's description"),
        StageState("sif", False, str(job.cache.image(job.key))),
        *others,
    )


def _name_warnings(job: _Job) -> tuple[Finding, ...]:
    """Two recipes of one name in different folders share one image name: the last one has it."""
    before = read_entry(job.cache, job.name)
    if before is None or before.recipe_path == str(job.loaded.folder):
        return ()
    return (
        Finding(
            Severity.WARNING,
            f"`{job.name}` meant the image of another recipe until now",
            str(job.loaded.folder),
            f"until now it was the image of {before.recipe_path}",
            "give one of the two recipes another `name`",
            "image-name",
        ),
    )


def _make(job: _Job, progress: Progress) -> ImageEntry:
    lock, cache = job.lock, job.cache
    tree = cache.tree(job.tree)
    stored = [
        cache.debian(debian_key(debs, lock)) for debs in (lock.deb, lock.deb + lock.build_deb)
    ]
    own = sources.compiled_bundled(job.loaded, lock)
    for part in (job.loaded.sources, own):
        stored += [cache.source(key) for key in sources.keys(job.loaded, lock, part)]
    used(tree, cache.tree_record(job.tree), *stored)
    record = read_record(cache, job.tree)
    built = all(cache.source(key).is_dir() for key in sources.keys(job.loaded, lock, own))
    if record is None or not built:
        absent = sum(package.size for package in missing(lock.packages, cache))
        # A squashfs is about a third larger than the packages in it; there is one of the tree and
        # one of the image.
        need_space(
            cache.root, absent + 3 * lock.download_bytes, f"building `{job.name}`", "XDG_CACHE_HOME"
        )
        fetch.fetch(job.loaded, lock, cache, progress)
    if record is None:
        make = engine_tree.build_tree if lock.base else build_tree
        record = make(job.loaded, lock, job.tree, cache, progress)
    size = tree.stat().st_size
    need_space(cache.root, size + size // 8, f"the image of `{job.name}`", "XDG_CACHE_HOME")
    with (
        workspace(scratch_parent(2 * size), "fairlead-") as scratch,
        workspace(cache.root / "work", "image-") as work,
    ):
        facts, packages, bytecode = _examine(job, record, scratch, progress)
        materials, parts = bill_of_materials(
            job.loaded, lock, job.lock_sha256, job.wheel_sha256, packages
        )
        description = payload.describe(
            job.loaded,
            lock,
            facts,
            lock_sha256=job.lock_sha256,
            tree_key=job.tree,
            wheel_sha256=job.wheel_sha256,
            materials=materials,
            components=parts,
            below=engine_tree.base_environment(job.loaded, lock, cache, progress),
        )
        members = payload.layer(job.loaded, description, job.wheel, bytecode, materials)
        members += payload.core(job.loaded, lock, job.wheel)
        members += payload.of_sources(sources.build_sources(job.loaded, lock, own, cache, progress))
        squashfs = scratch / "image.squashfs"
        made = payload.overlay(tree, record, members, squashfs, lock, cache, progress, job.again)
        return _wrap(job, squashfs, made, description, work, progress)


def _wrap(
    job: _Job,
    squashfs: Path,
    overlaid: payload.Overlaid,
    description: Description,
    work: Path,
    progress: Progress,
) -> ImageEntry:
    digest = overlaid.sha256
    size = squashfs.stat().st_size
    document = {
        **description.to_json(),
        "squashfs_sha256": digest,
        "squashfs_bytes": size,
        "tree_sha256": overlaid.tree_sha256,
        "tree_bytes": overlaid.tree_bytes,
    }
    text = json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
    made = work / "image.sif"
    with progress.stage("write the SIF", size, "B") as stage:
        sif_sha256 = write_sif(
            made,
            squashfs,
            text,
            arch=job.lock.architecture,
            epoch=job.lock.source_date_epoch,
            squashfs_sha256=digest,
            advance=stage.advance,
        )
        final = job.cache.image(job.key)
        made.replace(final)  # write_sif has synced it
        stage.result(f"{final.stat().st_size / 1e6:.0f} MB")
    entry = ImageEntry(
        key=job.key,
        path=str(final),
        sif_sha256=sif_sha256,
        squashfs_sha256=digest,
        tree_sha256=overlaid.tree_sha256,
        recipe=job.name,
        recipe_path=str(job.loaded.folder),
        lock_sha256=job.lock_sha256,
        wheel_sha256=job.wheel_sha256,
        tree=job.tree,
        bytes=final.stat().st_size,
    )
    write_entry(job.cache, entry, lambda key: forms.forget(job.cache, key))
    sweep(job.cache, trees_in_use(job.cache))
    return entry


def _examine(
    job: _Job, record: TreeRecord, scratch: Path, progress: Progress
) -> tuple[ImageFacts, Installed, dict[str, bytes]]:
    """The tree's facts and packages, from its record or by a scan; and our wheel's .pyc.

    The facts are checked either way.
    """
    facts, packages = record.facts, record.installed
    known = facts is not None and packages is not None
    python = job.loaded.recipe.python
    with progress.stage("examine the tree") as stage:
        found = examine(
            job.cache.tree(job.tree),
            scratch,
            facts=not known,
            wheel=job.wheel,
            python=f"{python.prefix}/bin/python3" if python else "",
            site=python.site if python else "",
        )
        if not known:
            facts, packages = found.facts, found.installed
            write_record(job.cache, job.tree, replace(record, facts=facts, installed=packages))
        assert facts is not None and packages is not None
        stage.result(f"{facts.files} ELF files, {len(facts.consumers)} use an MPI")
    if wrong := image_findings(facts, job.loaded):
        raise FairleadError(wrong)
    return facts, packages, found.bytecode


def _output(
    job: _Job, entry: ImageEntry, form: Format, output: Path | None, progress: Progress
) -> Path:
    if output is None and form == "sif":
        return Path(entry.path)
    with holding(job.cache, f"recipe-{job.name}", _waiting(job, progress)):
        if output is None:
            return forms.make(form, entry, job.cache, progress)
        return forms.hand_out(form, entry, job.cache, output, progress)


def _waiting(job: _Job, progress: Progress) -> Callable[[str], AbstractContextManager[object]]:
    return lambda who: progress.stage(f"wait for {who}, which is building `{job.name}` too")
