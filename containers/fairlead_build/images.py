"""Which image is the newest of each recipe, and what may be thrown away.

``images/by-name/NAME.json`` is what the runtime finds images by: it is written last, so a name
there means a whole image.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fairlead.findings import fail
from fairlead.paths import atomic_write
from fairlead_build.store import Cache

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ImageEntry:
    """One built image."""

    key: str
    path: str
    sif_sha256: str
    squashfs_sha256: str
    recipe: str
    recipe_path: str
    lock_sha256: str
    wheel_sha256: str
    tree: str
    bytes: int


def read_entry(cache: Cache, name: str) -> ImageEntry | None:
    """The newest image of the recipe called ``name``; None when it is not there, whole."""
    try:
        data = json.loads(cache.by_name(name).read_text("utf-8"))
        entry = ImageEntry(**{f.name: data[f.name] for f in fields(ImageEntry)})
        whole = Path(entry.path).stat().st_size == entry.bytes
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entry if whole else None


def write_entry(cache: Cache, entry: ImageEntry) -> None:
    """Makes ``entry`` the newest image of its recipe, and removes what it replaces.

    The caller holds the recipe's lock.
    """
    path = cache.by_name(entry.recipe)
    for left in path.parent.glob(f".{path.name}.*.partial"):
        left.unlink(missing_ok=True)
    old = read_entry(cache, entry.recipe)
    with atomic_write(path, "w") as out:
        json.dump(
            {"schema": "fairlead/image-index", "version": SCHEMA_VERSION, **asdict(entry)},
            out,
            indent=2,
        )
        out.write("\n")
    if old is None:
        return
    used = [e for p in path.parent.glob("*.json") if (e := read_entry(cache, p.stem)) is not None]
    if old.key not in {other.key for other in used}:
        cache.image(old.key).unlink(missing_ok=True)
        cache.image(old.key).with_suffix(".squashfs").unlink(missing_ok=True)
    if old.tree not in {other.tree for other in used}:
        cache.tree(old.tree).unlink(missing_ok=True)
        cache.tree_facts(old.tree).unlink(missing_ok=True)


def hand_out(source: Path, output: Path, suffix: str, name: str) -> Path:
    """Gives the user a copy of ``source`` as ``output``: signing it must not reach the cache.

    Args:
        output: a file name, or a folder, in which the image is called after its recipe.
    Raises:
        FairleadError: it cannot be written there.
    """
    target = output / f"{name}{suffix}" if output.is_dir() else output
    try:
        with source.open("rb") as given, atomic_write(target) as out:
            shutil.copyfileobj(given, out, 4 << 20)
    except OSError as exc:
        raise fail(
            f"cannot write the image to {target}",
            where=str(target),
            why=exc.strerror or str(exc),
            remedy="give another folder or file with -o",
            check="output-unwritable",
        ) from None
    return target
