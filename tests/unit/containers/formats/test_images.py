"""Which images stay: the newest of each recipe and the one before it."""

from __future__ import annotations

from pathlib import Path

from fairlead_build.cache.store import Cache
from fairlead_build.formats.images import ImageEntry, read_entry, write_entry


def entry(cache: Cache, key: str) -> ImageEntry:
    image = cache.image(key)
    image.write_bytes(b"image")
    cache.tree(f"tree-{key}").write_bytes(b"tree")
    return ImageEntry(
        key=key, path=str(image), sif_sha256="", squashfs_sha256="", tree_sha256="", recipe="mine",
        recipe_path="", lock_sha256="", wheel_sha256="", tree=f"tree-{key}", bytes=5,
    )  # fmt: skip


def test_image_replaced_stays_until_the_next_one(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.make()
    for key in ("one", "two", "two"):  # built again: nothing is pushed out
        write_entry(cache, entry(cache, key))
    assert {p.stem for p in (tmp_path / "images").glob("*.sif")} == {"one", "two"}
    write_entry(cache, entry(cache, "three"))
    assert {p.stem for p in (tmp_path / "images").glob("*.sif")} == {"two", "three"}
    assert {p.stem for p in (tmp_path / "trees").iterdir()} == {"tree-two", "tree-three"}
    newest = read_entry(cache, "mine")
    assert newest is not None and newest.key == "three"
