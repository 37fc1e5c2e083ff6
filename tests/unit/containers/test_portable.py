"""Recipes as texts: what they come to elsewhere is the same recipe and lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_build.base.digest import sha256_of
from fairlead_build.portable import _write, files_of
from fairlead_build.recipe.inherit import bundled_names
from fairlead_build.recipe.load import LoadedRecipe, addresses, load_recipe

LOCKED = [
    address
    for name in bundled_names()
    for address in addresses(name)
    if load_recipe(address).lock_path.is_file()
]


def _record(loaded: LoadedRecipe) -> dict[str, object]:
    lock = sha256_of(loaded.lock_path)
    return {"recipe": loaded.name, "recipe_sha256": loaded.digest, "lock_sha256": lock}


@pytest.mark.parametrize("address", LOCKED)
def test_recipe_written_elsewhere_from_its_texts_is_the_same(tmp_path: Path, address: str) -> None:
    loaded = load_recipe(address)
    files = files_of(_record(loaded))
    assert files, "no texts"
    _write(tmp_path, files)
    variant = f":{loaded.variant}" if loaded.variant else ""
    again = load_recipe(f"{tmp_path}{variant}")
    assert (again.name, again.digest) == (loaded.name, loaded.digest)
    assert sha256_of(again.lock_path) == sha256_of(loaded.lock_path)


def test_recipe_with_files_of_its_own_travels_with_them_and_their_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    (own / "code/deep").mkdir(parents=True)
    (own / "hello.sh").write_text("#!/bin/sh\necho 'hello'\n")
    (own / "hello.sh").chmod(0o755)
    (own / "code/deep/a.c").write_text("int a;\n")
    (own / "recipe.toml").write_text(
        'extends = "mpi-base"\n[recipe]\nname = "own"\nsummary = "ours"\n'
        '[files]\n"/usr/local/bin/hello" = "hello.sh"\n'
        '[[source]]\nname = "code"\nversion = "1"\npath = "code"\nrun = "true"\n'
    )
    (own / "lock.toml").write_text("# any\n")
    loaded = load_recipe(own)
    record = _record(loaded)
    assert files_of(record) == {}, "nobody knows where this recipe is"
    monkeypatch.setattr("fairlead_build.portable._places", lambda name: iter([str(own)]))
    files = files_of(record)
    assert {"hello.sh", "code/deep/a.c", "mpi-ring.c", "lock.toml"} < set(files)
    _write(tmp_path / "new", files)
    assert load_recipe(tmp_path / "new").digest == loaded.digest
    assert files_of({**record, "lock_sha256": "0" * 64}) == {}, "the lock has changed since"


def test_text_does_not_leave_the_folder_it_is_written_to(tmp_path: Path) -> None:
    _write(tmp_path / "in", {"../out": "x", "/tmp/out": "x", "good": "x"})
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "good"]
