"""Makes a lock: apt and pip say which versions a recipe means today.

:mod:`fairlead_build.resolve.apt_solve` and :mod:`fairlead_build.resolve.pip_solve` ask them; a source's checksum comes from its index or from the
recipe. Whatever the lock says already can be made to stay, but for what is to move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, fail, warning
from fairlead.base.progress import Progress
from fairlead.base.suggest import suggest
from fairlead.base.text import some
from fairlead.base.toml import load
from fairlead_build.base.digest import sha256_of
from fairlead_build.cache.store import Cache, adopt, missing, publish
from fairlead_build.recipe.inherit import project
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import (
    AptIndex,
    Deb,
    Inputs,
    Lock,
    LockedBase,
    SourceArchive,
    Wheel,
    check_writable,
    inputs_of,
    render,
    upstream,
    write_text,
)
from fairlead_build.recipe.model import Source
from fairlead_build.registry.layout import read_layout
from fairlead_build.resolve import archive, fetch
from fairlead_build.resolve.apt_solve import AptRoot, Pins, add_folder, apt_root, locked, solve
from fairlead_build.resolve.companions import without_their_libraries
from fairlead_build.resolve.fetch import Wanted, fetch_debs, fetch_wheels
from fairlead_build.resolve.pip import PYPI, settings, target_of
from fairlead_build.resolve.pip_solve import PipSolver
from fairlead_build.resolve.sources import Place, download, source_archive
from fairlead_build.tools import tool_tree
from fairlead_build.tree.base_image import base_files, base_layout, open_base
from fairlead_build.tree.wheel import requirements_in

# Makes the /usr merge of bookworm and later explicit; otherwise `usrmerge` and a whole Perl would be drawn in.
_ALWAYS = ("usr-is-merged",)


@dataclass(frozen=True)
class _Job:
    """All that a resolution works from.

    Attributes:
        old: the lock that is there already, sound or not of this recipe any more; None without one.
        upgrade: the packages that are to move, as they were given; without any, all do.
    """

    loaded: LoadedRecipe
    inputs: Inputs
    cache: Cache
    progress: Progress
    old: Lock | None
    upgrade: frozenset[str]
    on_finding: Callable[[Finding], None]

    @property
    def again(self) -> str:
        return f"fairlead recipe lock {self.loaded.given}"


def lock_recipe(
    loaded: LoadedRecipe,
    progress: Progress,
    cache: Cache,
    *,
    upgrade: Sequence[str] = (),
    keep: Path | None = None,
    on_finding: Callable[[Finding], None] = lambda finding: None,
) -> Lock:
    """Resolves a recipe against today's indexes and writes its lock.

    Args:
        upgrade: packages of the lock that move, with what they force along; all else stays.
            Without any, everything is resolved again.
        keep: an archive that gets every file of the lock.
        on_finding: called with each warning.
    Raises:
        FairleadError: a package does not exist, versions contradict each other, an index cannot be
            reached.
    """
    cache.make()
    check_writable(loaded.lock_path)
    if keep is not None:
        archive.check_writable(keep)
    inputs = inputs_of(loaded.recipe, requirements_in(loaded.recipe))
    old = check_upgrade(loaded, upgrade)
    job = _Job(loaded, inputs, cache, progress, old, frozenset(upgrade), on_finding)
    ground = _ground(job)
    debs, build_debs, epoch = _resolve_debs(job, ground)
    glibc = upstream(next((d.version for d in debs if d.name == "libc6"), ""))
    if ground.locked is not None:
        glibc = ground.locked.glibc
    wheels = _resolve_wheels(job, glibc, debs) if inputs.python else ()
    lock = Lock(
        version=2,
        recipe=loaded.name,
        architecture=loaded.architecture,
        source_date_epoch=epoch,
        inputs_sha256=inputs.digest,
        base=ground.locked,
        inputs=inputs,
        tools=tool_tree.versions(),
        deb=debs,
        build_deb=build_debs,
        wheel=wheels,
        source=_resolve_sources(job),
    )
    if keep is not None:
        _keep(job, lock, keep)
    write_text(loaded.lock_path, render(lock))
    return lock


def _keep(job: _Job, lock: Lock, folder: Path) -> None:
    """Everything that a build of ``lock`` needs goes into the archive, its tools and its base too."""
    cache, progress = job.cache, job.progress
    fetch.fetch(job.loaded, lock, cache, progress)
    tools = tool_tree.debs(lock.architecture)
    fetch_debs(tools, cache, progress, tool_tree.RELOCK)
    for name, packages in ((lock.recipe, lock.packages), ("fairlead's tools", tools)):
        archive.keep(map(archive.Kept.of, packages), name, folder, progress, cache.blob)
    if lock.base is not None:
        again, relock = f"{job.again} --archive {folder}", job.again
        base = base_layout(lock.base.image, lock.base.digest, cache, progress, again, relock)
        files = base_files(lock.base.image, read_layout(base))
        path_of = base.joinpath("blobs/sha256").joinpath
        archive.keep(files, lock.recipe, folder, progress, path_of)


def old_lock(loaded: LoadedRecipe) -> Lock | None:
    """The lock as it is, stale or not; None when there is none that can be read."""
    try:
        return load(loaded.lock_path, Lock, "fairlead recipe lock")
    except FairleadError:
        return None


def check_upgrade(loaded: LoadedRecipe, upgrade: Sequence[str]) -> Lock | None:
    """The lock as it is, after checking that it has all of ``upgrade``; None when there is none.

    Raises:
        FairleadError: exit code 2; something in ``upgrade`` is not in it.
    """
    old = old_lock(loaded)
    if not upgrade:
        return old
    if old is None:
        raise fail("upgrade-without-lock", loaded=loaded)
    debs = {d.name for d in (*old.deb, *old.build_deb)}
    wheels = {project(w.name) for w in old.wheel}
    unknown = [
        error("upgrade-lock-recipe-no-package", loaded=loaded, name=n, near=_near(n, debs | wheels))
        for n in upgrade
        if n not in debs and project(n) not in wheels
    ]
    if unknown:
        raise FairleadError(unknown, ExitCode.USAGE)
    return old


def _near(name: str, known: set[str]) -> str:
    hint = suggest(name, known)
    return hint if hint.startswith("Did") else ""


def _provided(providers: Sequence[str]) -> str:
    if not providers:
        return ""
    return f"it is virtual, and provided by {some(providers, most=8)}: name the one you want"


# --- what the image starts from ---------------------------------------------------------------


@dataclass(frozen=True)
class _Ground:
    """What is there before anything is installed.

    Attributes:
        index: where the distribution's packages come from.
        status: dpkg's status of what a base image has already; empty without one.
    """

    index: AptIndex
    status: str = ""
    locked: LockedBase | None = None


def _ground(job: _Job) -> _Ground:
    """The distribution of the recipe, or that of its base image, read from the image itself."""
    inputs = job.inputs
    if not inputs.image:
        return _Ground(AptIndex(inputs.distribution, inputs.suite, inputs.components))
    image, old = inputs.image, job.old
    if job.upgrade and old and old.base and old.base.image == image and "@" not in image:
        image = f"{image}@{old.base.digest}"  # what stays, stays to the bit
    base = open_base(image, job.cache, job.progress)
    if base.python and inputs.python and base.python != inputs.python:
        raise fail("base-image", base=base, inputs=inputs, loaded=job.loaded, again=job.again)
    fields = {f: getattr(base, f) for f in ("digest", "distribution", "suite", "glibc")}
    locked = LockedBase(image=inputs.image, **fields)
    parts = ("main", "universe") if locked.distribution == "ubuntu" else ("main",)
    return _Ground(AptIndex(locked.distribution, locked.suite, parts), base.dpkg_status, locked)


# --- Debian packages --------------------------------------------------------------------------


def _resolve_debs(job: _Job, ground: _Ground) -> tuple[tuple[Deb, ...], tuple[Deb, ...], int]:
    """The image's .debs, those for building only, and the epoch of the image."""
    inputs, old, index = job.inputs, job.old, ground.index
    # A lock never falls back behind corrections that were asked for before.
    before = (*old.deb, *old.build_deb) if old else ()
    of_index = {d.name: d.index for d in before}
    security = any(n in of_index for n in job.upgrade) or index.security.name in of_index.values()
    security = security and not index.suite.endswith("-security")
    indexes = [index, index.security] if security else [index]
    remedy = f"check the network and /etc/apt, then `{job.again}`"
    with (
        job.progress.stage("resolve Debian packages") as stage,
        apt_root(indexes, job.loaded.architecture, remedy=remedy, status=ground.status) as root,
    ):
        _check_known(root, job, index)
        pins = _pins(job, before, indexes)
        _keep_vanished(root, job, pins, before)
        doing = f"resolve the Debian packages of recipe `{job.loaded.name}`"
        remedy = f"edit packages.apt, then `{job.again}`"
        always = [] if ground.locked else _of_release(root)
        wanted = [*always, *inputs.apt]
        chosen = solve(root, wanted, pins, doing=doing, remedy=remedy)
        debs = locked(root, chosen, before)
        extra: list[Deb] = []
        if inputs.build_apt:
            # The builder has the image's packages as they are, and some more.
            exact = [f"{name}={version}" for name, version in chosen]
            more = solve(root, [*exact, *inputs.build_apt], pins, doing=doing, remedy=remedy)
            extra = locked(root, [pair for pair in more if pair not in set(chosen)], before)
        stage.result(
            f"{len(debs)} packages, {sum(d.size for d in debs) / 1e6:.0f} MB"
            + (f"; {len(extra)} for building only" if extra else "")
        )
        # What stays keeps its date: the files that do not move then keep their bytes.
        epoch = old.source_date_epoch if old and job.upgrade else root.epoch
        return tuple(debs), tuple(extra), epoch


def _of_release(root: AptRoot) -> list[str]:
    """What every image of the release begins with."""
    known = {name for name, _ in root.packages}
    return [*root.essential(), *(name for name in _ALWAYS if name in known)]


def _pins(job: _Job, before: Sequence[Deb], indexes: Sequence[AptIndex]) -> Pins:
    pins = Pins(security_suite=indexes[1].suite if len(indexes) > 1 else "")
    if pins.security_suite:
        corrected = {d.name for d in before if d.index == indexes[1].name}
        pins.security = corrected | {n for n in job.upgrade if n in {d.name for d in before}}
    if job.upgrade:
        pins.versions = {d.name: d.version for d in before if d.name not in job.upgrade}
    return pins


def _keep_vanished(root: AptRoot, job: _Job, pins: Pins, before: Sequence[Deb]) -> None:
    """Packages that stay although no index has them any more are taken from the store."""
    lost = [
        d for d in before if d.name in pins.versions and (d.name, d.version) not in root.packages
    ]
    if lost:
        fetch_debs(lost, job.cache, job.progress, job.again)
        add_folder(root, lost, job.cache, job.again)


def _check_known(root: AptRoot, job: _Job, index: AptIndex) -> None:
    known = {name for name, _ in root.packages}
    title = f"{index.distribution.capitalize()} {index.suite}"

    def near(name: str) -> str:
        return _provided(root.providers(name)) or _near(name, known)

    given: dict[str, Any] = {"title": title, "index": index, "loaded": job.loaded}
    wrong = [
        error("apt-unknown-edit", key=key, name=n, near=near(n), again=job.again, **given)
        for key, names in (("packages.apt", job.inputs.apt), ("source.apt", job.inputs.build_apt))
        for n in names
        if n not in known
    ]
    if wrong:
        raise FairleadError(wrong, ExitCode.USAGE)


# --- wheels -----------------------------------------------------------------------------------


def _resolve_wheels(job: _Job, glibc: str, debs: Sequence[Deb]) -> tuple[Wheel, ...]:
    minor = job.inputs.python
    release = upstream(next((d.version for d in debs if d.name == f"python{minor}"), ""))
    target = target_of(minor, job.loaded.architecture, glibc, release)
    old, moved = job.old.wheel if job.old else (), frozenset(map(project, job.upgrade))
    solver = PipSolver(job.loaded, job.inputs, target, old, stay=bool(job.upgrade), moved=moved)
    with job.progress.stage("resolve Python packages") as stage:
        wheels = solver.wheels(stage.note)
        stage.result(f"{len(wheels)} wheels")
    if yanked := [name for w in wheels if (name := f"{w.name} {w.version}") in solver.yanked]:
        job.on_finding(warning("pip-yanked", names=", ".join(yanked), loaded=job.loaded))
    lacking = [
        f"{w.name}[{extra}]"
        for w in wheels
        for extra in sorted(solver.extras.get(f"{project(w.name)} {w.version}", ()))
    ]
    if lacking:
        job.on_finding(warning("pip-extra", names=", ".join(lacking), loaded=job.loaded))
    # A build needs the files anyway, and pip's report does not say how large they are.
    if absent := missing(wheels, job.cache):
        fetch_wheels(absent, target, job.cache, job.progress, job.loaded.given)
    _check_companions(job, wheels, solver.indexes)
    sizes = [job.cache.blob(wheel.sha256).stat().st_size for wheel in wheels]
    return tuple(
        Wheel(**{**asdict(w), "size": size}) for w, size in zip(wheels, sizes, strict=True)
    )


def _check_companions(job: _Job, wheels: Sequence[Wanted], indexes: Mapping[str, str]) -> None:
    files = {w.name: job.cache.blob(w.sha256) for w in wheels if w.role == "python"}
    for name, libraries in without_their_libraries(files, indexes).items() if indexes else ():
        index = next(iter(indexes.values()))
        given = {"name": name, "index": index, "libraries": ", ".join(libraries)}
        job.on_finding(warning("pip-companion", loaded=job.loaded, **given))


# --- sources ----------------------------------------------------------------------------------


def _resolve_sources(job: _Job) -> tuple[SourceArchive, ...]:
    wanted = [s.source for s in job.loaded.sources if s.source.path is None]
    if not wanted:
        return ()
    archives = []
    with job.progress.stage("resolve sources") as stage:
        for source in wanted:
            stage.note(source.name)
            archives.append(_source(job, source))
        stage.result(f"{len(archives)} archives, {sum(s.size for s in archives) / 1e6:.0f} MB")
    return tuple(sorted(archives, key=lambda s: s.name))


def _source(job: _Job, source: Source) -> SourceArchive:
    before = {(s.name, s.version): s for s in (job.old.source if job.old else ())}
    known = before.get((source.name, source.version))
    index = source.index or "URL"
    if known and known.index == index and source.sha256 in (None, known.sha256):
        return known
    pip = settings()
    if source.url is not None:
        address, sha256 = source.url, source.sha256 or ""
        file = unquote(urlsplit(source.url).path.rsplit("/", 1)[-1])
    else:
        remedy = f"edit [[source]], then `{job.again}`"
        file, address, sha256 = source_archive(source.name, source.version, pip, remedy)
    partial = job.cache.partial(sha256 or hashlib.sha256(address.encode()).hexdigest())
    if not sha256:
        partial.unlink(missing_ok=True)  # nothing would show whether its halves belong together
    if not (sha256 and job.cache.blob(sha256).is_file()):
        download(Place(address, pip.certificates), partial, lambda amount: None)
        if sha256:
            remedy = f"correct `sha256` of [[source]] {source.name}, then `{job.again}`"
            adopt(job.cache, partial, sha256, None, f"source {source.name}", remedy)
        else:
            sha256 = sha256_of(partial)
            publish(partial, job.cache.blob(sha256))
    return SourceArchive(
        name=source.name,
        version=source.version,
        size=job.cache.blob(sha256).stat().st_size,
        sha256=sha256,
        index=PYPI if source.index else "URL",
        file=file,
    )
