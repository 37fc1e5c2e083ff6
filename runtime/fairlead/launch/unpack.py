"""An image as a folder, for engines that cannot open image files, and for others where it is wanted: unpacked once in the
cache, and kept. For one that opens a bare squashfs, the squashfs of a SIF.

Both are named after the digest of the image's file system, made next to the final name and renamed when they are whole,
so that any number of launches may ask for them at once. Nothing runs in a folder: an engine mounts it read-only or
below its own layer. What is unpacked has the digest of its name, and the metadata of every file is noted: what has changed
since is made again, so an engine opens what was verified.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fairlead.base import bounded_json, seals
from fairlead.base.errors import FairleadError, Finding, error, fail, os_error_as, warning
from fairlead.base.exposure import refuse_exposed
from fairlead.base.paths import atomic_write, locked, resolve_in
from fairlead.base.progress import Progress, Silent, Stage
from fairlead.engines.model import Engine, Takes
from fairlead.image.open import Image, file_format
from fairlead.image.sif import copy_object, read_sif
from fairlead.image.stored import size
from fairlead.launch.shared_cache import file_system, is_shared
from fairlead.swap.model import OUTPUT_MOUNT, RUN_MOUNT, WITNESS, Bind, Plan
from fairlead.swap.staging import KEPT_S, set_aside

_GROWS = 4  # a compressed file system unpacked; 3.4 for an image of Debian's with zstd
_DAY_S = 24 * 3600.0
_CHANGED = "what is there is not what was made, and is made again"
_BARE = ".squashfs"
_BLOCK = 4 << 20
_INODES_AT = 4  # where a squashfs has their number, 32 bits little-endian


def opened(image: Image, engine: Engine, cache: Path, *, folder: bool = False) -> str:
    """What ``engine`` is given to open ``image``: itself, or where it is or will be laid out.

    Args:
        folder: a folder is wanted where the engine opens files too.
    """
    if image.format == "sandbox" or engine.takes is Takes.NAME:
        return image.path
    as_folder = folder or engine.takes is Takes.FOLDER
    if not as_folder and (engine.takes is Takes.FILE or image.format == "squashfs"):
        return image.path
    return str(cache / "unpacked" / f"{image.digest}{'' if as_folder else _BARE}")


def objections(plan: Plan, by: str, nodes: int, mounts: str | None = None) -> Iterator[Finding]:
    """What speaks against a folder that the user or the site wants.

    Args:
        by: the option or the profile that wants it.
        nodes: of the launch; 0 where only the launcher knows.
        mounts: as of :func:`~fairlead.launch.shared_cache.file_system`.
    """
    engine = plan.engine
    if engine.takes is Takes.NAME:
        yield error("unpack-by-name", engine=engine, by=by)
    elif engine.forbids_folders:
        yield error("unpack-forbidden", engine=engine, by=by)
    elif is_folder(plan):
        kind, _ = file_system(Path(plan.opened).parents[1], mounts)
        if is_shared(kind):
            given = {"folder": plan.opened, "kind": kind, "by": by}
            yield warning("unpack-network" if nodes == 1 else "unpack-network-nodes", **given)


def is_folder(plan: Plan) -> bool:
    """Whether the engine opens a folder that was unpacked."""
    return plan.opened not in ("", plan.image) and not plan.opened.endswith(_BARE)


def ensure(
    plan: Plan,
    cache: Path,
    progress: Progress | None = None,
    binds: Iterable[Bind] = (),
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Lays the image out if the plan's engine needs that and no whole folder is there.

    Args:
        binds: of this launch, besides the plan's; an engine may want their places in the folder.
    Raises:
        FairleadError: exit code 123; there is no room or no tool, the image is damaged, or a folder of
            the user's own lacks the place of a bind. Exit code 121; others can write to the cache.
    """
    if plan.opened == plan.image and plan.engine.makes_places:
        return
    root = Path(plan.opened)
    ours = plan.opened != plan.image
    if ours:
        refuse_exposed(root.parent, cache)
    if ours and not is_folder(plan):
        _take_out(Path(plan.image), root, cache, progress or Silent())
    elif ours and not is_whole(root):
        _lay_out(Path(plan.image), root, cache, progress or Silent())
    if ours:
        with contextlib.suppress(OSError):
            os.utime(_record(root))
        _sweep_daily(root.parent)
    if not plan.engine.makes_places:
        _places(plan, root, (*plan.binds, *binds), environ, cache if ours else None)


def without_places(plan: Plan) -> tuple[Finding, ...]:
    """The places of binds that a folder of the user's own lacks, where the engine makes none."""
    if plan.opened != plan.image or plan.engine.makes_places:
        return ()
    output = (Bind("/", OUTPUT_MOUNT),) if plan.request.output_dir else ()
    try:
        _places(plan, Path(plan.image), (*plan.binds, Bind("/", RUN_MOUNT), *output), {}, None)
    except FairleadError as exc:
        return exc.findings
    return ()


def changed(plan: Plan) -> str:
    """What is no longer as :func:`ensure` left it, of what the engine opens; empty if nothing is."""
    root = Path(plan.opened)
    if plan.opened == plan.image:
        return ""
    whole = seals.holds(root, root.stem) if root.suffix else is_whole(root)
    return "" if whole else f"{root} was written to or replaced"


def is_whole(root: Path) -> bool:
    """Whether the folder is as it was laid out but for the places of binds: no file came, went or was written to."""
    try:
        kept = bounded_json.loads(_record(root).read_bytes())
        return bool(kept["state"] == _state(root, kept["places"]))
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _record(root: Path) -> Path:
    return seals.note_of(root)


def _state(root: Path, places: Iterable[str] = ()) -> str:
    """The metadata of all that is in a folder, but for places of binds that are empty.

    Of folders only names and modes count: new places alter the rest, and the modes of the folders above them.
    """
    skipped = set(places)
    digest = hashlib.sha256(f"{os.geteuid()} {root.stat().st_ino}\n".encode())
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(root / folder) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except OSError as exc:  # what can be read depends on who reads
            if not folder:
                raise
            digest.update(os.fsencode(folder) + f"\0{exc.errno}\n".encode())
            continue
        for entry in inside:
            path, status = os.path.join(folder, entry.name), entry.stat(follow_symlinks=False)  # noqa: PTH118
            is_folder = stat.S_ISDIR(status.st_mode)
            if is_folder:
                pending.append(path)
            if path in skipped and (is_folder or (entry.is_file() and not status.st_size)):
                continue
            of_folder = str(status.st_mode | stat.S_IWUSR | stat.S_IXUSR)
            words = of_folder if is_folder else f"{status.st_mode} {seals.state_of(status)}"
            digest.update(os.fsencode(path) + f"\0{words}\n".encode())
    return digest.hexdigest()


def _write_record(root: Path, state: str, places: Iterable[str], **more: object) -> None:
    """
    Args:
        more: what else is kept: the image's path, and the bytes of all files.
    """
    with atomic_write(_record(root), "w") as out:
        json.dump({**more, "state": state, "places": sorted(places)}, out)


def _lock_of(root: Path, cache: Path) -> Path:
    return cache / "locks" / f"unpacked-{root.name[:16]}.lock"


def _take_out(image: Path, bare: Path, cache: Path, progress: Progress) -> None:
    """The squashfs of a SIF, as a separate file, whose name has its digest."""
    item, digest = read_sif(image).squashfs, bare.stem
    if seals.holds(bare, digest):
        return
    with (
        os_error_as("unpack-folder-unwritable", folder=bare.parent),
        progress.stage(f"extract the squashfs of {image.name}", item.size, "B") as stage,
        locked(_lock_of(bare, cache), lambda: stage.note("another launch is doing it")),
    ):
        if seals.holds(bare, digest):
            stage.result("done by another launch")
            return
        if bare.exists():
            stage.note(_CHANGED)
        with atomic_write(bare) as out:
            copy_object(image, item, out)
        stage.advance(item.size)
        if not seals.holds(bare, digest):
            bare.unlink()
            raise fail("unpack-digest", image=image, digest=digest)


def _lay_out(image: Path, root: Path, cache: Path, progress: Progress) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    with (
        progress.stage(f"unpack {image.name} into a folder", unit="files") as stage,
        locked(_lock_of(root, cache), lambda: stage.note("another launch is doing it")),
    ):
        if is_whole(root):
            stage.result("done by another launch")
            return
        if root.exists():
            stage.note(_CHANGED)
        with os_error_as("unpack-folder-unwritable", folder=root.parent):
            _clear(root)
            with _squashfs(image, root) as squashfs:
                _unpack(squashfs, root, stage, image)


@contextmanager
def _squashfs(image: Path, root: Path) -> Iterator[Path]:
    """A copy of an image's file system, which has the digest that ``root`` is named after.

    Raises:
        FairleadError: exit code 123; there is no room to unpack it, or the image was changed.
    """
    with tempfile.TemporaryDirectory(prefix=".squashfs.", dir=root.parent) as work:
        bare = Path(work, "squashfs")
        with bare.open("wb") as out:
            if file_format(image) == "squashfs":
                with image.open("rb") as stream:
                    shutil.copyfileobj(stream, out, _BLOCK)
            else:
                copy_object(image, read_sif(image).squashfs, out)
        if seals.seal(bare).sha256 != root.name:
            raise fail("unpack-digest", image=image, digest=root.name)
        need, free = _GROWS * bare.stat().st_size, shutil.disk_usage(root.parent).free
        if free < need:
            raise fail("unpack-no-space", folder=root.parent, need=need >> 20, free=free >> 20)
        yield bare


def _unpack(squashfs: Path, root: Path, stage: Stage, image: Path) -> None:
    """By way of a tar stream: rdsquashfs would wait for the disk after each file."""
    reader, tar = shutil.which("sqfs2tar"), shutil.which("tar")
    if reader is None or tar is None:
        raise fail("unpack-tools-missing")
    with squashfs.open("rb") as stream:
        stream.seek(_INODES_AT)
        stage.total(int.from_bytes(stream.read(4), "little"))
    work = Path(tempfile.mkdtemp(prefix=f".{root.name}.", suffix=".partial", dir=root.parent))
    try:
        tree = work / "new"
        tree.mkdir()
        # The files belong to the user who unpacks it; engines bring the machine's own /dev.
        into = (tar, "-x", "-p", "-v", "--no-same-owner", "--anchored", "--exclude=dev/*")
        with (work / "said").open("w+b") as errors:
            with (
                subprocess.Popen(
                    [reader, squashfs], stdout=subprocess.PIPE, stderr=errors
                ) as source,
                subprocess.Popen(
                    [*into, "-C", tree], stdin=source.stdout, stdout=subprocess.PIPE, stderr=errors
                ) as made,
            ):
                assert source.stdout is not None and made.stdout is not None
                source.stdout.close()
                for _ in made.stdout:  # a line a file
                    stage.advance(1)
            errors.seek(0)
            message = errors.read()[-400:].decode("utf-8", "replace").strip()
        if source.returncode or made.returncode:
            raise fail("unpack-tar-failed", root=root, made=made, message=message)
        tree.chmod(0o755)
        _to_disk(tree)
        tree.rename(root)
        time.sleep(
            seals.SETTLED_S
        )  # a later change to the file that came last has to show in its times
        _write_record(root, _state(root), (), image=str(image), bytes=size(root))
    finally:
        _remove(work)


def _to_disk(tree: Path) -> None:
    """All of its file system at once: an image has ten thousand files."""
    handle = os.open(tree, os.O_RDONLY)
    try:
        if sync := getattr(ctypes.CDLL(None), "syncfs", None):
            sync(handle)
    finally:
        os.close(handle)


def _clear(root: Path) -> None:
    """Removes what a killed process left of this folder."""
    for left in root.parent.glob(f".{root.name}.*.partial"):
        _remove(left)
    set_aside(root)  # it is not whole


def _sweep_daily(folder: Path) -> None:
    """Removes what is no longer used; at most once a day, since every launch asks."""
    stamp = folder / ".swept"
    with contextlib.suppress(OSError):
        if stamp.exists() and time.time() - stamp.stat().st_mtime < _DAY_S:
            return
        stamp.touch()
        for path in unused(folder, KEPT_S):
            forget(path)


@dataclass(frozen=True)
class Unpacked:
    """A folder or a squashfs that was made of an image.

    Attributes:
        image: the path of the image; empty if unknown.
        made, used: seconds since 1970; it was used when a launch last opened it.
    """

    path: Path
    digest: str
    image: str
    bytes: int
    made: float
    used: float


def unpacked(cache: Path) -> Iterator[Unpacked]:
    """Everything that is laid out in the cache."""
    for path in sorted((cache / "unpacked").glob("[!.]*")):
        if path.suffix not in ("", _BARE):
            continue
        kept: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            kept = bounded_json.loads(_record(path).read_bytes())
        with contextlib.suppress(OSError):
            status, record = path.stat(), _record(path)
            used = record.stat().st_mtime if record.exists() else status.st_mtime
            amount = int(kept.get("bytes") or size(path))
            yield Unpacked(path, path.stem, str(kept.get("image", "")), amount, status.st_ctime, used)  # fmt: skip


def unused(folder: Path, seconds: float) -> Iterator[Path]:
    """Folders and squashfs files below ``folder`` that no launch has opened for so long, and what was set aside."""
    for form in ("*.json", ".*.old", "*.squashfs"):
        for path in sorted(folder.glob(form)):
            if path.suffix == ".squashfs" and _record(path).exists():
                continue
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > seconds:
                    yield path.with_suffix("") if path.suffix == ".json" else path


def forget(path: Path) -> None:
    """Removes a folder or a squashfs file of :func:`unused`, and its record first."""
    with contextlib.suppress(OSError):
        _record(path).unlink(missing_ok=True)
        if path.is_dir():
            _remove(path)
        else:
            path.unlink(missing_ok=True)


def _remove(tree: Path) -> None:
    """Removes a tree, also folders in it that their owner may not write."""
    for folder, _, _ in os.walk(tree):
        with contextlib.suppress(OSError):
            Path(folder).chmod(stat.S_IRWXU)
    shutil.rmtree(tree, ignore_errors=True)


def _places(
    plan: Plan, root: Path, binds: Sequence[Bind], environ: Mapping[str, str], cache: Path | None
) -> None:
    """Makes the places of binds in a folder of the cache's; in the user's own, sees that they are there.

    Args:
        cache: None for the user's own.
    """
    for bind in binds:
        if ":" in bind.source + bind.target:
            raise fail("bind-place-colon", engine=plan.engine, bind=bind)
    # What is not there yet, or on other nodes only, is a folder of staged data; but the witness is compiled later.
    missing = [
        (
            bind.target,
            Path(bind.source).is_dir()
            or not (Path(bind.source).exists() or bind.target == WITNESS),
        )
        for bind in binds
        if _inside(root, bind.target) is None
    ]
    own_binds = (p for p in plan.engine.own_binds if _inside(root, p) is None)
    missing += [(place.rstrip("/"), place.endswith("/")) for place in own_binds]
    if cache is None:
        if missing:
            raise _no_places(plan, root, missing)
        return
    # What a rank sees besides, where it has it.
    candidates = [environ.get("HOME", ""), environ.get("TMPDIR", ""), os.getcwd(), "/var/tmp"]  # noqa: PTH109
    missing += [(p, True) for p in candidates if p.startswith("/") and _inside(root, p) is None]
    with locked(_lock_of(root, cache)) if missing else contextlib.nullcontext():
        for target, folder in missing:
            with os_error_as("unpack-no-mount-point", root=root, target=target):
                _make(root, target, folder)


def _inside(root: Path, target: str) -> Path | None:
    return resolve_in(root, root / target.lstrip("/"))


def _make(root: Path, target: str, folder: bool) -> None:
    """An empty folder or file, behind whatever links lead to it within the tree."""
    parts = PurePosixPath(target).parts[1:]
    for depth in range(1, len(parts) + 1):
        if _inside(root, "/".join(parts[:depth])):
            continue
        parent = _inside(root, "/".join(parts[: depth - 1])) or root
        place = parent / parts[depth - 1]
        kept = bounded_json.loads(_record(root).read_bytes())
        places = {*kept["places"], str(place.relative_to(root))}
        _write_record(root, **{**kept, "places": places})
        parent.chmod(parent.stat().st_mode | stat.S_IWUSR | stat.S_IXUSR)
        with contextlib.suppress(FileExistsError):  # a launch on another node may be making it too
            if folder or depth < len(parts):
                place.mkdir()
            else:
                place.touch(exist_ok=True)


def _no_places(plan: Plan, root: Path, missing: list[tuple[str, bool]]) -> FairleadError:
    folders = [str(root) + t if f else str(root) + str(PurePosixPath(t).parent) for t, f in missing]
    files = [str(root) + t for t, f in missing if not f]
    line = "mkdir -p " + shlex.join(sorted(set(folders)))
    if files:
        line += " && touch " + shlex.join(files)
    first = ", ".join(t for t, _ in missing[:4])
    return fail("bind-place-missing", missing=first, root=root, engine=plan.engine, line=line)
