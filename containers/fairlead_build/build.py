"""``fairlead build``: from a recipe and its lock to one deterministic image, stage by stage.

=======  ===================================================  =============================
stage    makes                                                read next
=======  ===================================================  =============================
fetch    every .deb and wheel of the lock, by hash            ``fetch.py``
tree     a squashfs of all that, without our own wheel        ``tree.py``
facts    what the planner must know; checked against itself   ``examine.py``, ``mpicheck.py``
payload  our wheel and the image's description over the tree  ``payload.py``
sif      the squashfs in a SIF                                ``sif.py``
index    the name under which ``fairlead run`` finds it       ``images.py``
=======  ===================================================  =============================

Each stage's result has a key made of all its inputs, and is kept in the cache under it.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import fairlead
from fairlead.facts import ImageFacts
from fairlead.findings import ExitCode, FairleadError, Finding, Severity, fail
from fairlead.paths import atomic_write
from fairlead.progress import Progress, Silent
from fairlead.serial import from_json, to_json
from fairlead.sif import copy_object, read_sif
from fairlead.suggest import suggest
from fairlead_build import fetch, payload
from fairlead_build.examine import examine
from fairlead_build.images import ImageEntry, hand_out, read_entry, write_entry
from fairlead_build.lock import Lock, load_lock
from fairlead_build.mpicheck import image_findings
from fairlead_build.ownwheel import own_wheel, runtime_requirements
from fairlead_build.payload import Description
from fairlead_build.proc import no_space
from fairlead_build.recipe import LoadedRecipe, load_recipe
from fairlead_build.resolve import target_of
from fairlead_build.sif import write_sif
from fairlead_build.store import Cache, holding, need_space, publish, scratch_parent, workspace
from fairlead_build.tools import architecture, versions
from fairlead_build.tree import build_tree, tree_key

Format = Literal["sif", "squashfs"]
FORMATS: tuple[Format, ...] = ("sif", "squashfs")
SUFFIX = {"sif": ".sif", "squashfs": ".squashfs"}


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
        outputs: the files of the chosen formats, in the same order.
        warnings: what does not stop a build, e.g. other tool versions than the lock's.
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
        formats: of :data:`FORMATS`.
        output: a file (one format only) or a folder that gets the image; it stays in the cache too.
        dry_run: only says what would be done.
    Raises:
        FairleadError: bad recipe or lock, a failed stage, or no room; whatever stage was finished
            is kept, and the same command goes on from there.
    """
    chosen = _formats(formats, output)
    job = _prepare(load_recipe(recipe), cache or Cache.default())
    entry = _current(job)
    if dry_run:
        return BuildResult(job.name, job.key, entry is not None, entry, (), _stages(job, entry), ())
    progress = progress or Silent()
    cached = entry is not None
    warnings: tuple[Finding, ...] = ()
    try:
        if entry is None:
            # One build of a recipe at a time; the next one is told whom it waits for.
            with holding(
                job.cache,
                f"recipe-{job.name}",
                lambda who: progress.stage(f"wait for {who}, which is building `{job.name}` too"),
            ):
                entry = _current(job)  # somebody else may have built it while we waited
                if entry is None:
                    warnings = (*_tool_warnings(job.lock), *_name_warnings(job))
                    entry = _make(job, progress)
        outputs = tuple(_output(job, entry, form, output, progress) for form in chosen)
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(
                "build the image", Path(exc.filename).parent if exc.filename else job.cache.root
            ) from None
        raise
    return BuildResult(job.name, job.key, cached, entry, outputs, _stages(job, entry), warnings)


def _formats(formats: Sequence[str], output: Path | None) -> list[Format]:
    chosen = []
    for name in formats:
        match = next((known for known in FORMATS if known == name), None)
        if match is None:
            raise fail(
                f"no image format `{name}`",
                where="--format",
                why=suggest(name, FORMATS),
                remedy=f"--format {','.join(FORMATS)}",
                check="format",
                code=ExitCode.USAGE,
            )
        chosen.append(match)
    if output is not None and len(chosen) > 1 and not output.is_dir():
        raise fail(
            f"{len(chosen)} formats cannot become one file",
            where=f"-o {output}",
            why="it is not a folder",
            remedy=f"mkdir -p {output}, or give one --format",
            check="format",
            code=ExitCode.USAGE,
        )
    return chosen


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
    cache.make()
    wheel = own_wheel(cache) if python else None
    wheel_sha256 = hashlib.sha256(wheel).hexdigest() if wheel else ""
    tree = tree_key(loaded, lock)
    told = [tree, loaded.digest, lock_sha256, wheel_sha256, fairlead.__version__]
    key = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return _Job(loaded, lock, lock_sha256, wheel, wheel_sha256, tree, key, cache)


def _current(job: _Job) -> ImageEntry | None:
    entry = read_entry(job.cache, job.name)
    return entry if entry is not None and entry.key == job.key else None


def _stages(job: _Job, entry: ImageEntry | None) -> tuple[StageState, ...]:
    if entry is not None:
        return tuple(
            StageState(name, True, "") for name in ("fetch", "tree", "facts", "payload", "sif")
        )
    absent = fetch.missing(job.lock.packages, job.cache)
    tree = job.cache.tree(job.tree).is_file()
    needed = not tree and bool(absent)
    size = sum(item.size for item in absent)
    return (
        StageState(
            "fetch", not needed, f"{len(absent)} files, {size / 1e6:.0f} MB" if needed else ""
        ),
        StageState(
            "tree", tree, f"{len(job.lock.deb)} Debian packages, {len(job.lock.wheel)} wheels"
        ),
        StageState("facts", _read_facts(job) is not None, "MPI libraries and who uses them"),
        StageState("payload", False, "fairlead and the image's description"),
        StageState("sif", False, str(job.cache.image(job.key))),
    )


def _tool_warnings(lock: Lock) -> tuple[Finding, ...]:
    here = versions()
    told = [
        f"{name} is {here[name]}, was {lock.tools[name]}"
        for name in here
        if lock.tools.get(name) != here[name]
    ]
    if not told:
        return ()
    return (
        Finding(
            Severity.WARNING,
            "this image may differ in its bytes from other machines'",
            "the tools of this machine",
            "; ".join(told),
            "to compare digests, build with the versions in lock.toml, [tools]",
            "tool-versions",
        ),
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
    if not tree.is_file():
        absent = sum(package.size for package in fetch.missing(lock.packages, cache))
        # A squashfs is about a third larger than the packages in it; there is one of the tree and
        # one of the image.
        need_space(
            cache.root, absent + 3 * lock.download_bytes, f"building `{job.name}`", "XDG_CACHE_HOME"
        )
        target = (
            target_of(lock.inputs.python, lock.architecture, _glibc(lock)) if lock.wheel else ()
        )
        fetch.fetch(lock, target, cache, progress, job.loaded.given)
        tree = build_tree(job.loaded, lock, job.tree, cache, progress)
    size = tree.stat().st_size
    need_space(cache.root, size + size // 8, f"the image of `{job.name}`", "XDG_CACHE_HOME")
    with (
        workspace(scratch_parent(2 * size), "fairlead-") as scratch,
        workspace(cache.root / "work", "image-") as work,
    ):
        facts, bytecode = _examine(job, tree, scratch, progress)
        description = payload.describe(
            job.loaded,
            lock,
            facts,
            lock_sha256=job.lock_sha256,
            tree_key=job.tree,
            wheel_sha256=job.wheel_sha256,
        )
        members = payload.layer(job.loaded, description, job.wheel, bytecode)
        squashfs = scratch / "image.squashfs"
        digest = payload.overlay(tree, members, squashfs, lock, progress, job.again)
        return _wrap(job, squashfs, digest, description, work, progress)


def _wrap(
    job: _Job, squashfs: Path, digest: str, description: Description, work: Path, progress: Progress
) -> ImageEntry:
    size = squashfs.stat().st_size
    document = {**description.to_json(), "squashfs_sha256": digest, "squashfs_bytes": size}
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
        recipe=job.name,
        recipe_path=str(job.loaded.folder),
        lock_sha256=job.lock_sha256,
        wheel_sha256=job.wheel_sha256,
        tree=job.tree,
        bytes=final.stat().st_size,
    )
    write_entry(job.cache, entry)
    return entry


def _glibc(lock: Lock) -> str:
    version = next((d.version for d in lock.deb if d.name == "libc6"), "2.17")
    return version.split("-")[0]


def _examine(
    job: _Job, tree: Path, scratch: Path, progress: Progress
) -> tuple[ImageFacts, dict[str, bytes]]:
    """The tree's facts, from the cache or by a scan, checked either way; and our wheel's .pyc."""
    known = _read_facts(job)
    python = job.loaded.recipe.python
    with progress.stage("examine the tree") as stage:
        found = examine(
            tree,
            scratch,
            facts=known is None,
            wheel=job.wheel,
            python=f"{python.prefix}/bin/python3" if python else "",
            site=python.site if python else "",
        )
        facts = known or found.facts
        assert facts is not None
        if known is None:
            with atomic_write(job.cache.tree_facts(job.tree), "w") as out:
                json.dump({"scanner": _scanner(), "facts": to_json(facts)}, out)
        stage.result(f"{facts.files} ELF files, {len(facts.consumers)} use an MPI")
    if wrong := image_findings(facts, job.loaded):
        raise FairleadError(wrong)
    return facts, found.bytecode


def _read_facts(job: _Job) -> ImageFacts | None:
    try:
        data = json.loads(job.cache.tree_facts(job.tree).read_text("utf-8"))
        return from_json(ImageFacts, data["facts"]) if data["scanner"] == _scanner() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _scanner() -> str:
    """The digest of the code that finds facts: newer code finds other facts in the same tree."""
    folder = Path(fairlead.__file__).parent
    names = ("elf.py", "facts.py", "identify.py", "scan.py")
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()


def _output(
    job: _Job, entry: ImageEntry, form: Format, output: Path | None, progress: Progress
) -> Path:
    image = Path(entry.path)
    if form == "sif":
        return hand_out(image, output, SUFFIX[form], job.name) if output else image
    target = image.with_suffix(SUFFIX[form]) if output is None else output
    if output is None and target.is_file():
        return target
    with (
        progress.stage("take the squashfs out of the SIF") as stage,
        workspace(job.cache.root / "work", "squashfs-") as work,
    ):
        held = read_sif(image).squashfs
        made = work / "image.squashfs"
        with made.open("wb") as out:
            copy_object(image, held, out)
        stage.result(f"{held.size / 1e6:.0f} MB")
        if output is not None:
            return hand_out(made, output, SUFFIX[form], job.name)
        publish(made, target)
    return target
