"""Which image is the newest of each recipe, and what may be thrown away.

``images/by-name/NAME.json`` is what the runtime finds images by: it is written last, so a name
there means a whole image.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import os_error_as
from fairlead.base.paths import atomic_write, is_device
from fairlead.image.signature import carry
from fairlead_build.cache.store import Cache, remove_tree
from fairlead_build.recipe.load import file_name

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ImageEntry:
    """One built image. ``tree_sha256`` is the digest that all its formats share."""

    key: str
    path: str
    sif_sha256: str
    squashfs_sha256: str
    tree_sha256: str
    recipe: str
    recipe_path: str
    lock_sha256: str
    wheel_sha256: str
    tree: str
    bytes: int


def read_entry(cache: Cache, name: str) -> ImageEntry | None:
    """The newest image of the recipe called ``name``; None when it is not there, whole."""
    try:
        data = bounded_json.loads(cache.by_name(name).read_bytes())
        entry = ImageEntry(**{f.name: data[f.name] for f in fields(ImageEntry)})
        whole = Path(entry.path).stat().st_size == entry.bytes
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entry if whole else None


def write_entry(cache: Cache, entry: ImageEntry) -> None:
    """Makes ``entry`` the newest image of its recipe; the one before it stays, older ones go.

    Job scripts and running jobs hold the path of the image that was the newest until now. The caller
    holds the recipe's lock.
    """
    path = cache.by_name(entry.recipe)
    for left in path.parent.glob(f".{path.name}.*.partial"):
        left.unlink(missing_ok=True)
    old = read_entry(cache, entry.recipe)
    oldest = before = _before(path)
    if old is not None and old.key != entry.key:
        before = {"key": old.key, "tree": old.tree}
    document = {"schema": "fairlead/image-index", "version": SCHEMA_VERSION, **asdict(entry)}
    with atomic_write(path, "w") as out:
        json.dump({**document, "before": before}, out, indent=2)
        out.write("\n")
    if not oldest or oldest == before:
        return
    held = _held(cache)
    if oldest["key"] not in {kept["key"] for kept in held}:
        forget(cache, oldest["key"])
    if oldest["tree"] not in {kept["tree"] for kept in held}:
        cache.tree(oldest["tree"]).unlink(missing_ok=True)
        cache.tree_record(oldest["tree"]).unlink(missing_ok=True)


def forget(cache: Cache, key: str) -> None:
    """Removes every format of the image ``key``, their sidecars and signatures."""
    for path in cache.image(key).parent.glob(f"{key}.*"):
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)


def trees_in_use(cache: Cache) -> set[str]:
    """The keys of the trees of all images that are known by name, and of those before them."""
    return {kept["tree"] for kept in _held(cache)}


def _held(cache: Cache) -> list[dict[str, str]]:
    """Key and tree of every image that is known by name, and of the one before it."""
    held = []
    for path in (cache.root / "images" / "by-name").glob("*.json"):
        if (entry := read_entry(cache, path.stem)) is not None:
            held.append({"key": entry.key, "tree": entry.tree})
        held += [before] if (before := _before(path)) else []
    return held


def _before(path: Path) -> dict[str, str]:
    """Key and tree of the image that the newest of a recipe replaced; empty when there is none."""
    try:
        before = bounded_json.loads(path.read_bytes())["before"]
        return {"key": str(before["key"]), "tree": str(before["tree"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def file_in(output: Path, name: str, suffix: str) -> Path:
    """``output`` itself, or in a folder the file called after the recipe or image ``name``."""
    return output / f"{file_name(name)}{suffix}" if output.is_dir() else output


def check_target(target: Path, need: int) -> None:
    """Refuses a name that an image cannot get, before anything is made for it.

    Args:
        need: bytes that the image has at least.
    Raises:
        FairleadError: nothing can be written there, or there is no room.
    """
    with os_error_as("output-unwritable-cannot-write-image", target=target):
        if is_device(target):
            reason = "an image is a file, and nothing in /dev or /proc is replaced"
            raise OSError(errno.EINVAL, reason)
        folder = next(above for above in target.absolute().parents if os.path.lexists(above))
        # Asked in earnest: permissions do not tell what a file server allows.
        with tempfile.TemporaryFile(dir=folder):
            pass
        if shutil.disk_usage(folder).free < need:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def hand_out_copy(source: Path, output: Path, suffix: str, name: str) -> Path:
    """Gives the user a copy of ``source``: signing it must not reach the cache.

    Args:
        output: a file name, or a folder, in which the copy is called after the image ``name``.
    Raises:
        FairleadError: it cannot be written there.
    """
    target = file_in(output, name, suffix)
    with os_error_as("output-unwritable-cannot-write-image", target=target):
        with source.open("rb") as content, atomic_write(target) as out:
            shutil.copyfileobj(content, out, 4 << 20)
        carry(source, target)
    return target
