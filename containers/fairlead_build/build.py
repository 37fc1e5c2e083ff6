"""``fairlead build``: from a recipe and its lock to one deterministic image, stage by stage.

=======  ===================================================  ============================================
stage    makes                                                read next
=======  ===================================================  ============================================
fetch    every .deb and wheel of the lock, by hash            ``resolve/fetch.py``
tree     a squashfs of all that, without our own wheel        ``tree/tree.py``
facts    what the planner must know; checked against itself   ``tree/record.py``, ``tree/mpi_check.py``
payload  our wheel and the image's description over the tree  ``tree/payload.py``
sif      the squashfs in a SIF                                ``formats/sif.py``
others   the other formats that were requested                ``formats/store.py``
index    the name under which ``fairlead run`` finds it       ``formats/images.py``
=======  ===================================================  ============================================

Each stage's result has a key made of all its inputs, and is kept in the cache under it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import fairlead
from fairlead.base import bounded_json
from fairlead.base.errors import ExitCode, FairleadError, Finding, fail, warning
from fairlead.base.progress import Progress, Silent
from fairlead.image.contents import contents_of, keep_contents, keep_tree, known_contents
from fairlead.image.mount import look
from fairlead_build.base.digest import json_digest
from fairlead_build.base.platform import architecture
from fairlead_build.base.proc import no_space
from fairlead_build.cache.store import (
    Cache,
    holding,
    missing,
    need_space,
    scratch_parent,
    sweep,
    used,
    workspace,
)
from fairlead_build.formats import store as forms
from fairlead_build.formats.images import (
    ImageEntry,
    check_target,
    read_entry,
    trees_in_use,
    write_entry,
)
from fairlead_build.formats.model import Format
from fairlead_build.formats.registry import chosen as chosen_formats
from fairlead_build.formats.sif import FORMAT as SIF
from fairlead_build.formats.sif import write_sif
from fairlead_build.formats.wrapping import as_json
from fairlead_build.recipe.inherit import project
from fairlead_build.recipe.load import LoadedRecipe, RecipeSource, load_recipe
from fairlead_build.recipe.lock import Package, load_lock
from fairlead_build.resolve import fetch
from fairlead_build.tools import tool_tree
from fairlead_build.tree import engine_tree, payload, sources
from fairlead_build.tree.debian import debian_key
from fairlead_build.tree.job import TreeJob
from fairlead_build.tree.mpi_check import image_findings
from fairlead_build.tree.record import Contents, TreeRecord, read_record, write_record
from fairlead_build.tree.sbom import bill_of_materials
from fairlead_build.tree.source_wheels import check_declared, requirement_findings
from fairlead_build.tree.tree import build_tree, tree_key
from fairlead_build.tree.wheel import own_wheel, requirements_in
from fairlead_build.tree.wheel_compile import compile_wheel
from fairlead_build.tree.wheel_staging import Built


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
        cached: the image existed already.
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
class _Job(TreeJob):
    """All that a build works from.

    Attributes:
        wheel: fairlead's own; None for an image whose Python cannot run it.
        key: of the finished image.
        own: fairlead's own sources that are compiled, to be laid over the tree.
    """

    wheel: bytes | None
    made_from: payload.Keys
    key: str
    own: tuple[RecipeSource, ...]


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
        formats: their names (``formats.registry``).
        output: the name of a copy (one format only), or a folder that gets the copies.
        dry_run: only says what would be done.
    Raises:
        FairleadError: bad recipe or lock, a failed stage, or no room; whatever stage was finished
            is kept, and the same command goes on from there.
    """
    chosen = chosen_formats(formats, output)
    cache = cache or Cache.default()
    warnings: tuple[Finding, ...] = ()
    outputs: tuple[Path, ...] = ()
    with _system_errors_named(cache):
        job = _prepare(load_recipe(recipe), cache, progress or Silent())
        entry = _current(job)
        cached = entry is not None
        if output is not None:
            # A squashfs is hardly smaller than the packages in it.
            packages = (*job.lock.deb, *job.lock.wheel)
            need = entry.bytes if entry else sum(item.size for item in packages) // 2
            for form in chosen:
                check_target(forms.target_of(form, job.loaded.name, output), need)
        if entry is None and not dry_run:
            with _holding(job):
                entry = _current(job)  # another process may have built it while we waited
                if entry is None:
                    # Two recipes of one name in different folders share one image name.
                    before = read_entry(cache, job.loaded.name)
                    if before and before.recipe_path != str(job.loaded.folder):
                        warnings = (warning("image-name", loaded=job.loaded, before=before),)
                    entry = _make(job)
        if entry is not None and not dry_run:
            outputs = tuple(_output(job, entry, form, output) for form in chosen)
            warnings += _lacking(job)
    stages = _stages(job, entry, chosen)
    return BuildResult(job.loaded.name, job.key, cached, entry, outputs, stages, warnings)


@contextmanager
def _system_errors_named(cache: Cache) -> Iterator[None]:
    """Turns errors of the file system into findings: the cache is full, unwritable or gone."""
    try:
        yield
    except FairleadError as exc:
        # A tool reports a missing file its own way; where the whole cache is gone, that is why.
        if exc.findings[0].check == "tool-failed" and not cache.root.is_dir():
            gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(cache.root))
            raise cache.removed(gone) from exc
        raise
    except OSError as exc:
        # A link that cannot be made is named by its target and by its path.
        names = [Path(n) for n in (exc.filename, exc.filename2) if isinstance(n, str)]
        file = next((n for n in names if n.is_relative_to(cache.root)), names[0] if names else None)
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space("build the image", file.parent if file else cache.root) from None
        if exc.errno in (errno.EROFS, errno.EACCES) and file and file.is_relative_to(cache.root):
            raise cache.unwritable(exc) from None
        if exc.errno == errno.ENOENT and file and file.is_relative_to(cache.root):
            raise cache.removed(exc) from None
        raise


def _prepare(loaded: LoadedRecipe, cache: Cache, progress: Progress) -> _Job:
    lock, lock_sha256 = load_lock(loaded, requirements_in(loaded.recipe))
    if lock.architecture != (here := architecture()):
        raise fail("architecture-lock-differs", loaded=loaded, lock=lock, here=here)
    if wrong := tool_tree.mismatch(lock, loaded.given, loaded.lock_path):
        raise FairleadError([wrong], ExitCode.USAGE)
    cache.make()
    wheel = own_wheel(cache) if loaded.recipe.ships_fairlead else None
    wheel_sha256 = hashlib.sha256(wheel).hexdigest() if wheel else ""
    tree = (engine_tree.tree_key if lock.base else tree_key)(loaded, lock)
    # The wheel holds the code that writes the payload; an image without Python 3.11 has no wheel.
    versions = (fairlead.__version__, payload.SCHEMA_VERSION)
    inputs = [tree, loaded.digest, lock_sha256, wheel_sha256, *versions]
    key = json_digest(inputs)
    made_from = payload.Keys(lock_sha256, wheel_sha256, tree)
    own = sources.compiled_bundled(loaded, lock)
    return _Job(loaded, lock, cache, progress, wheel, made_from, key, own)


def _current(job: _Job) -> ImageEntry | None:
    entry = read_entry(job.cache, job.loaded.name)
    return entry if entry is not None and entry.key == job.key else None


def _stages(
    job: _Job, entry: ImageEntry | None, chosen: Sequence[Format]
) -> tuple[StageState, ...]:
    key, cache = job.key, job.cache
    others = tuple(
        StageState(form.name, forms.is_kept(form, cache, key), str(forms.kept(form, cache, key)[0]))
        for form in chosen
        if form is not SIF
    )
    if entry is not None:
        names = ("fetch", "tree", "facts", "payload", "sif")
        return (*(StageState(name, True, "") for name in names), *others)
    lock = job.lock
    absent = missing(_packages(job), cache)
    record = read_record(cache, job.made_from.tree)
    size = sum(item.size for item in absent)
    fetch_detail = f"{len(absent)} files, {size / 1e6:.0f} MB"
    needed = record is None and bool(absent)
    debs_and_wheels = f"{len(lock.deb)} Debian packages, {len(lock.wheel)} wheels"
    known = record is not None and record.contents is not None
    return (
        StageState("fetch", not needed, fetch_detail if needed else ""),
        StageState("tree", record is not None, debs_and_wheels),
        StageState("facts", known, "MPI libraries and who uses them"),
        StageState("payload", False, "fairlead and the image's description"),
        StageState("sif", False, str(cache.image(key))),
        *others,
    )


def _make(job: _Job) -> ImageEntry:
    record = _tree(job)
    cache, tree = job.cache, job.cache.tree(job.made_from.tree)
    size = tree.stat().st_size
    need_space(cache.root, size + size // 8, f"the image of `{job.loaded.name}`", "XDG_CACHE_HOME")
    with (
        workspace(scratch_parent(2 * size), "fairlead-") as scratch,
        workspace(cache.root / "work", "image-") as work,
    ):
        contents, bytecode = _contents(job, record, scratch)
        loaded, lock, keys = job.loaded, job.lock, job.made_from
        sbom = bill_of_materials(
            loaded, lock, keys.lock_sha256, keys.wheel_sha256, contents.installed
        )
        below = engine_tree.base_environment(job)
        description = payload.describe(loaded, lock, contents.facts, keys, sbom, below)
        files = payload.layer(loaded, description, job.wheel, bytecode, sbom)
        files |= payload.core(loaded, lock, job.wheel)
        files |= payload.of_sources(sources.build_sources(job, job.own))
        squashfs = scratch / "image.squashfs"
        overlaid = payload.overlay(tree, record, files, squashfs, job)
        if whole := record.whole:
            document = bounded_json.loads(as_json(description))
            digest = overlaid["squashfs_sha256"]
            keep_contents(digest, job.cache.root / "facts", whole.facts, whole.installed, document)
        return _wrap(job, squashfs, {**description, **overlaid}, work)


def _tree(job: _Job) -> TreeRecord:
    """The record of the tree in the cache, which is built if it is not there."""
    loaded, lock, cache = job.loaded, job.lock, job.cache
    parts = [cache.debian(debian_key(debs, lock)) for debs in (lock.deb, lock.deb + lock.build_deb)]
    for declared in (loaded.sources, job.own):
        parts += [cache.source(key) for key in sources.keys(loaded, lock, declared)]
    used(cache.tree(job.made_from.tree), cache.tree_record(job.made_from.tree), *parts)
    record = read_record(cache, job.made_from.tree)
    built = all(cache.source(key).is_dir() for key in sources.keys(loaded, lock, job.own))
    if record is None or not built:
        packages = _packages(job)
        absent = sum(package.size for package in missing(packages, cache))
        # A squashfs is about a third larger than the packages in it; there is one of the tree and
        # one of the image.
        need = absent + 3 * sum(package.size for package in packages)
        need_space(cache.root, need, f"building `{job.loaded.name}`", "XDG_CACHE_HOME")
        fetch.fetch(loaded, lock, cache, job.progress, packages)
    if record is None:
        key = job.made_from.tree
        if lock.base:
            return engine_tree.build_tree(job, key)
        # What is compiled for the image is made after its tree.
        over = None if job.own else payload.programs(loaded, lock, job.wheel, {})
        record = build_tree(job, key, over)
    for source, result in zip(loaded.sources, _results(job), strict=True):
        check_declared(loaded, source, result)
    return record


def _lacking(job: _Job) -> tuple[Finding, ...]:
    """A warning for each wheel built from source that requires what the image lacks."""
    loaded, lock, cache = job.loaded, job.lock, job.cache
    wheels = {project(w.name): cache.blob(w.sha256) for w in lock.wheel if w.role == "python"}
    return requirement_findings(loaded, lock, _results(job), wheels)


def _results(job: _Job) -> list[Built]:
    """What came of each source; of those that are not built, empty folders."""
    keys = sources.keys(job.loaded, job.lock, job.loaded.sources)
    return [Built(job.cache.source(key)) for key in keys]


def _packages(job: _Job) -> tuple[Package, ...]:
    """What is needed of the lock: a compiler and its headers only where something is compiled."""
    lock = job.lock
    compiles = bool(job.own or job.loaded.sources)
    return lock.packages if compiles else (*lock.deb, *lock.wheel, *lock.source)


def _wrap(job: _Job, squashfs: Path, document: dict[str, Any], work: Path) -> ImageEntry:
    """The SIF of a finished squashfs and its record, under its name."""
    lock, squashfs_sha256 = job.lock, document["squashfs_sha256"]
    with (
        _looking_inside(job, squashfs, squashfs_sha256, document["tree_sha256"]),
        job.progress.stage("write the SIF", document["squashfs_bytes"], "B") as stage,
    ):
        sif_sha256 = write_sif(
            work / "image.sif", squashfs, ("image.json", as_json(document)), arch=lock.architecture,
            epoch=lock.source_date_epoch, squashfs_sha256=squashfs_sha256, advance=stage.advance,
        )  # fmt: skip
        final = (work / "image.sif").replace(job.cache.image(job.key))  # write_sif has synced it
        stage.result(f"{final.stat().st_size / 1e6:.0f} MB")
    entry = ImageEntry(
        key=job.key,
        path=str(final),
        sif_sha256=sif_sha256,
        squashfs_sha256=squashfs_sha256,
        tree_sha256=document["tree_sha256"],
        recipe=job.loaded.name,
        recipe_path=str(job.loaded.folder),
        **asdict(job.made_from),
        bytes=final.stat().st_size,
    )
    write_entry(job.cache, entry)
    sweep(job.cache, trees_in_use(job.cache))
    return entry


@contextmanager
def _looking_inside(
    job: _Job, squashfs: Path, squashfs_sha256: str, tree_sha256: str
) -> Iterator[None]:
    """Keeps what is in a finished image, so that its first use needs not look; where that fails, it does.

    Of a tree that was just built it is known. Else the block runs meanwhile: the look is the work of one core.
    """
    facts = job.cache.root / "facts"
    keep_tree(squashfs_sha256, tree_sha256, facts)
    if known_contents(squashfs_sha256, facts):
        yield
        return

    def look_inside() -> None:
        with suppress(FairleadError, OSError):
            contents_of(squashfs, 0, squashfs_sha256, facts)

    looking = threading.Thread(target=look_inside)
    looking.start()
    try:
        yield
    finally:
        with job.progress.stage("look into the image"):
            looking.join()


def _contents(job: _Job, record: TreeRecord, scratch: Path) -> tuple[Contents, dict[str, bytes]]:
    """What the tree contains, from its record or by a look; and our wheel's .pyc.

    The facts are checked either way.
    """
    key, python = job.made_from.tree, job.loaded.recipe.python
    tree, contents, bytecode = job.cache.tree(key), record.contents, {}
    with job.progress.stage("examine the tree") as stage:
        if contents is None:
            inspected = look(tree, 0)
            contents = Contents(inspected.facts, inspected.installed)
            write_record(job.cache, key, replace(record, contents=contents))
        if job.wheel and python:
            bytecode = compile_wheel(job.wheel, python, tree, scratch)
        stage.result(
            f"{contents.facts.files} ELF files, {len(contents.facts.consumers)} use an MPI"
        )
    if wrong := image_findings(contents.facts, job.loaded):
        raise FairleadError(wrong)
    return contents, bytecode


def _output(job: _Job, entry: ImageEntry, form: Format, output: Path | None) -> Path:
    if output is None and form is SIF:
        return Path(entry.path)
    with _holding(job):
        if output is None:
            return forms.make(form, entry, job.cache, job.progress)
        return forms.hand_out(form, entry, job.cache, output, job.progress)


def _holding(job: _Job) -> AbstractContextManager[None]:
    """The lock of the recipe: one build at a time; a second one shows what it waits for."""
    name = job.loaded.name
    return holding(job.cache, f"recipe-{name}", job.progress, f"is building `{name}` too")
