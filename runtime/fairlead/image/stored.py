"""The images in the cache: which there are, what they take, who uses them, and their removal.

``images/by-name/NAME.json`` names what was built here, the newest of each recipe and the one before it;
``images/pulled/by-reference/*.json`` what was pulled. The builder writes both.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base import proc_stat
from fairlead.base.errors import fail
from fairlead.base.paths import locked


@dataclass(frozen=True)
class Stored:
    """One image in the cache, in all its formats.

    Attributes:
        names: by which `run` finds it; empty for one that nothing names any more.
        kind: ``built``, ``previous``, which a newer one of its recipe replaced, or ``pulled``.
        files: of its formats, with their sidecars and signatures; and its tree, if it has that to itself.
        records: the files that give it its names.
        bytes: of all files.
        made, used: seconds since 1970; it was used when one of its formats was last read.
        digest: sha256 of its squashfs; empty where no record has it.
    """

    names: tuple[str, ...]
    kind: str
    path: Path
    files: tuple[Path, ...]
    records: tuple[Path, ...]
    bytes: int
    made: float
    used: float
    digest: str = ""

    @property
    def title(self) -> str:
        """What a list calls it."""
        return ", ".join(self.names) or self.path.name


def stored(cache: Path) -> tuple[Stored, ...]:
    """Every image of the cache: built ones by name, those before them, pulled ones."""
    built = [(path, data) for path in _records(cache / "images/by-name") if (data := _read(path))]
    trees: list[str] = [str(data.get("tree", "")) for _, data in built]
    trees += [str(before["tree"]) for _, data in built if (before := _before(data))]

    def tree_of(key: str) -> list[Path]:
        alone = key and trees.count(key) == 1
        return sorted((cache / "trees").glob(f"{key}.*")) if alone else []

    images: list[Stored] = []
    for record, data in built:
        key, digest = str(data.get("key", "")), str(data.get("squashfs_sha256", ""))
        tree = tree_of(str(data.get("tree", "")))
        images += _image(
            (record.stem,), "built", cache / f"images/{key}.sif", (record,), tree, digest
        )
    there = {image.path for image in images}
    for _, data in built:
        if before := _before(data):
            path = cache / f"images/{before['key']}.sif"
            if path not in there:
                there.add(path)
                images += _image((), "previous", path, (), tree_of(str(before["tree"])))
    for path in sorted((cache / "images").glob("*.sif")):
        if path not in there:
            images += _image((), "previous", path, (), [])
    return (*images, *_pulled(cache))


def _pulled(cache: Path) -> Iterator[Stored]:
    folder = cache / "images/pulled"
    named: dict[Path, list[tuple[str, Path]]] = {path: [] for path in sorted(folder.glob("*.sif"))}
    for record in _records(folder / "by-reference"):
        data = _read(record)
        path = folder / Path(str(data.get("path", ""))).name
        if path in named:
            named[path].append((str(data.get("reference", "")), record))
    for path, pairs in named.items():
        names, records = tuple(n for n, _ in pairs), tuple(r for _, r in pairs)
        yield from _image(names, "pulled", path, records, [])


def _image(
    names: tuple[str, ...],
    kind: str,
    path: Path,
    records: tuple[Path, ...],
    tree: list[Path],
    digest: str = "",
) -> Iterator[Stored]:
    """The image whose SIF is ``path``; none where there is no file of it."""
    files = sorted(path.parent.glob(f"{path.stem}.*"))
    if not files:
        return
    times = [file.stat() for file in files]
    yield Stored(
        names, kind, path, (*files, *tree), records, sum(map(size, (*files, *tree))),
        min(t.st_mtime for t in times), max(max(t.st_atime, t.st_mtime) for t in times), digest,
    )  # fmt: skip


def _records(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _before(data: Mapping[str, Any]) -> Mapping[str, Any]:
    before = data.get("before")
    return before if isinstance(before, dict) and {"key", "tree"} <= before.keys() else {}


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    with contextlib.suppress(OSError):
        if not path.is_dir():
            return path.stat().st_size
        return sum(p.lstat().st_size for p in path.rglob("*") if not p.is_dir())
    return 0


def named(cache: Path, name: str) -> Stored:
    """The image that ``name`` means: one of its names, or the file itself.

    Raises:
        FairleadError: exit code 2; there is none.
    """
    for image in stored(cache):
        if name in (*image.names, str(image.path), image.path.name):
            return image
    raise fail("image-not-stored", name=name)


def users(paths: Iterable[Path], proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Processes of this machine that have one of these files open, or name it in their command line.

    Not this one and those that started it, which may name it too.
    """
    wanted, ours = {str(path) for path in paths}, set(_ancestors(proc))
    # All that other users see of what a setuid Apptainer mounted.
    wanted |= {f" runtime parent: {Path(path).name}" for path in wanted if path.endswith(".sif")}
    pids = []
    for process in proc.glob("[0-9]*"):
        if int(process.name) in ours:
            continue
        if any(path in text for text in _names(process) for path in wanted):
            pids.append(int(process.name))
    return tuple(sorted(pids))


def _names(process: Path) -> Iterator[str]:
    """The command line of a process and the files that it has open.

    What cannot be read is left out by itself: a descriptor that closes during the look must not
    hide the others.
    """
    with contextlib.suppress(OSError):
        yield (process / "cmdline").read_text("utf-8", "replace")
    with contextlib.suppress(OSError):
        for link in list((process / "fd").iterdir()):
            with contextlib.suppress(OSError):
                yield os.readlink(link)  # noqa: PTH115


def _ancestors(proc: Path) -> Iterator[int]:
    """This process, its parent, and so on."""
    pid = os.getpid()
    while pid > 0:
        yield pid
        try:
            pid = int(proc_stat.fields(proc / str(pid))[proc_stat.PARENT])
        except (OSError, ValueError, IndexError):
            return


def check_unused(image: Stored) -> None:
    """Refuses an image that cannot be removed now.

    Raises:
        FairleadError: a process of this machine uses it.
    """
    if pids := users(image.files):
        raise fail("image-in-use", image=image, pids=",".join(map(str, pids)))


def remove(image: Stored, cache: Path) -> None:
    """Removes an image: first what names it, so that nobody finds half of it.

    Raises:
        FairleadError: a process of this machine uses it.
    """
    check_unused(image)
    with contextlib.ExitStack() as held:
        if image.kind == "built":  # a build of the same recipe writes these files
            for record in image.records:
                held.enter_context(locked(cache / "locks" / f"recipe-{record.stem}.lock"))
        if not any((i.path, i.names) == (image.path, image.names) for i in stored(cache)):
            return  # it was replaced or removed while we waited
        for path in (*image.records, *image.files):
            _remove(path)


def _remove(path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for folder, _, _ in os.walk(path):  # a sandbox has folders that its owner may not write
        with contextlib.suppress(OSError):
            Path(folder).chmod(stat.S_IRWXU)
    shutil.rmtree(path)
