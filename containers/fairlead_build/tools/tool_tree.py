"""The tools whose output is part of an image's bytes, from a lock of their own: ``tools.lock.toml``.

A tree of a few Debian packages is unpacked once into the cache, and its programs run with its own
dynamic loader and libraries. So the bytes of an image do not depend on which versions of them this
machine has, or whether it has them at all.

mmdebstrap is a script and runs under this machine's perl; the apt that it calls, which decides in
which order packages are configured, is the tree's. What is left to the machine (``tar``,
``dpkg-deb``, ``chroot``) moves bytes without choosing any.

``command(NAME, cache)`` is what others need; ``recipe lock --tools`` calls :func:`relock`.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from typing import Literal

from fairlead.base.errors import Finding, error, fail
from fairlead.base.progress import Progress, Silent
from fairlead.base.toml import Strict, load
from fairlead_build.base.digest import json_digest, sha256_of
from fairlead_build.base.platform import MACHINES, Architecture, architecture
from fairlead_build.base.proc import piped
from fairlead_build.cache.store import Cache, missing, need_space, workspace
from fairlead_build.recipe.lock import AptIndex, Deb, Lock, array_lines, write_text
from fairlead_build.recipe.model import AptName, OneLine, Suite
from fairlead_build.resolve import archive
from fairlead_build.resolve.fetch import fetch_debs

LOCK = Path(__file__).with_name("tools.lock.toml")
RELOCK = "fairlead recipe lock --tools"
# Raised when something below changes what the programs write.
_LAYOUT = 1
_PROGRAMS = (
    "apt-cache", "apt-config", "apt-get", "mmdebstrap", "pigz", "rdsquashfs", "sqfs2tar",
    "tar2sqfs", "zstd",
)  # fmt: skip
# What apt needs to read a folder of packages. Anything that downloads asks this machine's own apt.
_METHODS = ("copy", "file", "store")
_LOADER: dict[Architecture, str] = {
    "amd64": "ld-linux-x86-64.so.2",
    "arm64": "ld-linux-aarch64.so.1",
}


class ToolLock(Strict):
    """A whole ``tools.lock.toml``; the packages of every architecture."""

    version: Literal[1]
    suite: Suite
    components: tuple[OneLine, ...]
    packages: tuple[AptName, ...]
    deb: tuple[Deb, ...]


@once
def tool_lock() -> ToolLock:
    """The lock that came with this fairlead.

    Raises:
        FairleadError: it is invalid.
    """
    return load(LOCK, ToolLock, RELOCK)


def debs(arch: Architecture | None = None) -> tuple[Deb, ...]:
    """The packages of the tool tree; by default of this machine's architecture."""
    wanted = (arch or architecture(), "all")
    return tuple(d for d in tool_lock().deb if d.architecture in wanted)


def identity(arch: Architecture | None = None) -> str:
    """The digest of the tool tree: equal ones write equal bytes."""
    content = [_LAYOUT, sorted([d.name, d.version, d.architecture, d.sha256] for d in debs(arch))]
    return json_digest(content)


def versions(arch: Architecture | None = None) -> dict[str, str]:
    """What a recipe's lock says of its tools: the tree's digest, and versions for people."""
    locked = {d.name: d.version for d in debs(arch)}
    named = ("apt", "mmdebstrap", "pigz", "squashfs-tools-ng", "zstd")
    return {"tree": identity(arch), **{name: locked[name] for name in named}}


def mismatch(lock: Lock, given: str, path: Path) -> Finding | None:
    """Why ``lock`` was made for other tools than these; None when it was not."""
    ours = versions(lock.architecture)
    if lock.tools.get("tree") == ours["tree"]:
        return None
    differing = [
        f"{name} is {ours[name]}, the lock says {lock.tools.get(name, 'nothing')}"
        for name in ours
        if name != "tree" and lock.tools.get(name) != ours[name]
    ]
    return error(
        "tool-versions", path=path, differing="; ".join(differing), relock=RELOCK, given=given
    )


# --- use ---------------------------------------------------------------------------------------


def command(name: str, cache: Cache | None = None) -> list[str | Path]:
    """The command that starts program ``name`` of the tool tree; its arguments follow.

    Raises:
        FairleadError: the tree is not there and cannot be fetched or unpacked.
    """
    if name not in _PROGRAMS:
        raise ValueError(f"the tool tree has no {name}")
    return [unpacked(cache or Cache.default()) / "bin" / name]


# Trees that this process has verified: reading 10 MB each time would be noticeable.
_SEEN: set[Path] = set()


def unpacked(cache: Cache, progress: Progress | None = None) -> Path:
    """The tool tree in the cache, made when it is not there, whole.

    Raises:
        FairleadError: it cannot be fetched or unpacked.
    """
    final = cache.tools(identity())
    if not (final in _SEEN and final.is_dir()) and not _whole(final):
        _make(final, debs(), cache, progress or Silent())
    _SEEN.add(final)
    return final


def _make(final: Path, packages: Sequence[Deb], cache: Cache, progress: Progress) -> None:
    cache.make()
    archive.bring(map(archive.Kept.of, packages), cache, progress)
    if absent := missing(packages, cache):
        fetch_debs(absent, cache, progress, f"update fairlead, or {RELOCK}")
    need_space(cache.root, 64 << 20, "the tool tree", "XDG_CACHE_HOME")
    with (
        progress.stage("unpack the tools", len(packages), "packages") as stage,
        workspace(cache.root / "work", "tools-") as work,
    ):
        made = work / "tree"
        unpack(packages, cache, made, architecture())
        stage.advance(len(packages))
        stage.result(f"{len(packages)} packages")
        if _whole(final):
            return  # another process was quicker, and may run programs of it
        try:
            if final.exists():
                final.rename(work / "damaged")
            made.rename(final)
        except OSError:
            if not _whole(final):  # quicker still
                raise


def _whole(tree: Path) -> bool:
    try:
        files: dict[str, str] = json.loads((tree / "tree.json").read_bytes())["files"]
        # An older fairlead may have wanted fewer programs of the same packages.
        complete = {f"bin/{name}" for name in _PROGRAMS} <= files.keys()
        return complete and all(sha256_of(tree / name) == files[name] for name in files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


# --- unpacking ---------------------------------------------------------------------------------


def unpack(packages: Sequence[Deb], cache: Cache, target: Path, arch: Architecture) -> None:
    """Makes the tool tree at ``target``: ``bin/`` to start, ``lib/`` and ``real/`` behind it.

    Raises:
        FairleadError: a package is damaged, or a program lacks a library.
    """
    for name in ("bin", "lib", "methods", "real"):
        (target / name).mkdir(parents=True)
    for deb in packages:
        argv: list[str | Path] = ["dpkg-deb", "--fsys-tarfile", cache.blob(deb.sha256)]
        with piped(argv, doing=f"unpack {deb.name}", remedy=RELOCK) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    _lay(archive, member, target, arch)
            stream.read()
    for name in (*_PROGRAMS, *_METHODS):
        place = target / ("methods" if name in _METHODS else "bin") / name
        _write(place, _starter(name, arch))
    if lost := sorted(_lost(target)):
        raise fail("tool-tree", lock=LOCK, lost=", ".join(lost), relock=RELOCK)
    paths = sorted(path for path in target.rglob("*") if path.is_file())
    files = {str(path.relative_to(target)): sha256_of(path) for path in paths}
    # What it holds, so that a damaged tree is noticed.
    _write(target / "tree.json", json.dumps({"files": files}, separators=(",", ":")), 0o644)
    for path in (target, *target.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)


def _starter(name: str, arch: Architecture) -> str:
    # `perl` of this machine, whatever PATH says: an environment module's may lack Debian's modules.
    loader = f'"$tree/lib/{_LOADER[arch]}" --library-path "$tree/lib"'
    program = "/usr/bin/perl" if name == "mmdebstrap" else loader
    options = ' -o "Dir::Bin::Methods=$tree/methods"' if name.startswith("apt-") else ""
    return f"""#!/bin/sh
tree=$(CDPATH= cd -- "${{0%/*}}/.." && pwd -P) || exit
exec {program} "$tree/real/{name}"{options} "$@"
"""


def _lay(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, arch: Architecture
) -> None:
    """Lays a program or library of a package where the tree has it."""
    path = member.name.removeprefix("./")
    head, _, name = path.rpartition("/")
    head = head.removeprefix("usr/")
    if head == f"lib/{MACHINES[arch]}-linux-gnu" and ".so" in name:
        place = target / "lib" / name
    elif (head == "bin" and name in _PROGRAMS) or (head == "lib/apt/methods" and name in _METHODS):
        place = target / "real" / name
    else:
        return
    if member.issym() and "/" not in member.linkname:
        place.symlink_to(member.linkname)
    elif member.isreg():
        data = archive.extractfile(member)
        assert data is not None
        _write(place, data.read(), 0o755)


def _write(path: Path, data: str | bytes, mode: int = 0o755) -> None:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    path.chmod(mode)


def _lost(tree: Path) -> Iterator[str]:
    """Missing programs, and libraries that something needs and the tree lacks."""
    from fairlead.elf.reader import NotElf, read

    for name in (*_PROGRAMS, *_METHODS):
        if not (tree / "real" / name).is_file():
            yield name
    for path in (*(tree / "real").iterdir(), *(tree / "lib").iterdir()):
        with suppress(NotElf):  # mmdebstrap is a script
            yield from (n for n in read(path).needed if not (tree / "lib" / n).is_file())


# --- the lock ----------------------------------------------------------------------------------


def relock(progress: Progress, cache: Cache) -> None:
    """Locks the tools against today's index, and writes ``tools.lock.toml``.

    Raises:
        FairleadError: the index cannot be read, lacks a package, or the tree would not be whole.
    """
    from fairlead_build.resolve.apt_solve import newest

    before = tool_lock()
    index = AptIndex("debian", before.suite, before.components)
    by_file: dict[str, Deb] = {}
    with progress.stage("resolve the tools", len(MACHINES), "architectures") as stage:
        for arch in MACHINES:
            debs_today = newest(index, arch, before.packages, f"edit {LOCK}, then `{RELOCK}`")
            by_file |= {deb.file: deb for deb in debs_today}
            stage.advance(1)
    after = before.model_copy(update={"deb": tuple(by_file[file] for file in sorted(by_file))})
    cache.make()
    if absent := missing(after.deb, cache):
        fetch_debs(absent, cache, progress, RELOCK)
    with workspace(cache.root / "work", "tools-") as work:
        for arch in MACHINES:
            wanted = [d for d in after.deb if d.architecture in (arch, "all")]
            unpack(wanted, cache, work / arch, arch)
    write_text(LOCK, render(after))
    tool_lock.cache_clear()


def render(lock: ToolLock) -> str:
    """The text of ``tools.lock.toml``."""
    head = {key: getattr(lock, key) for key in ("version", "suite", "components")}
    lines = [
        f"# Made by `{RELOCK}`, but for `packages`: what the tool tree is made of.",
        *(f"{key} = {json.dumps(value)}" for key, value in head.items()),
        "packages = [",
        *(f"  {json.dumps(name)}," for name in lock.packages),
        "]\n",
        *array_lines("deb", lock.deb),
    ]
    return "\n".join(lines) + "\n"
