"""Locks: written and read back, matched with their recipe, and refused when they do not fit."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fairlead.findings import FairleadError
from fairlead_build.lock import Lock, differences, inputs_of, load_lock, render
from fairlead_build.ownwheel import runtime_requirements
from fairlead_build.recipe import LoadedRecipe, load_recipe, names
from fairlead_build.resolve import target_of
from fairlead_build.tree import tree_key


def mine(folder: Path, **changes: str) -> LoadedRecipe:
    """A copy of mpi-base, with texts of its recipe replaced."""
    target = folder / "mine"
    shutil.copytree(load_recipe("mpi-base").folder, target)
    text = (target / "recipe.toml").read_text()
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    (target / "recipe.toml").write_text(text)
    return load_recipe(target)


@pytest.mark.parametrize("name", names())
def test_lock_bundled_matches_its_recipe(name: str) -> None:
    loaded = load_recipe(name)
    lock, digest = load_lock(loaded, runtime_requirements())
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert {d.index for d in lock.deb} == {"Debian bookworm main"}
    assert {w.index for w in lock.wheel} == {"PyPI"}
    # No host, no path of a machine: the file says index names only.
    text = loaded.lock_path.read_text()
    assert "://" not in text and not re.search(r"\b(deb|pypi)\.\w+\.(org|net)\b", text)


@pytest.mark.parametrize("name", names())
def test_lock_rendered_is_the_file_itself(name: str) -> None:
    loaded = load_recipe(name)
    lock, _ = load_lock(loaded, runtime_requirements())
    assert render(lock) == loaded.lock_path.read_text()


def test_lock_missing_names_the_command(tmp_path: Path) -> None:
    loaded = mine(tmp_path)
    loaded.lock_path.unlink()
    with pytest.raises(FairleadError) as caught:
        load_lock(loaded, runtime_requirements())
    assert caught.value.findings[0].remedy == f"fairlead recipe lock {tmp_path / 'mine'}"


def test_lock_of_another_recipe_names_each_difference(tmp_path: Path) -> None:
    loaded = mine(
        tmp_path,
        one=("level = 3", "level = 9"),
        two=('"numpy>=2"', '"numpy>=2", "scipy"'),
        three=('3.4.3"', '3.4.2"'),
    )
    with pytest.raises(FairleadError) as caught:
        load_lock(loaded, runtime_requirements())
    finding = caught.value.findings[0]
    for words in ("wants pip scipy", "level is 9 in the recipe, 3 in the lock", "mpich==3.4.2"):
        assert words in finding.why
    assert finding.remedy.startswith("fairlead recipe lock ")


def test_lock_stale_by_our_own_requirements_says_so() -> None:
    loaded = load_recipe("mpi-base")
    with pytest.raises(FairleadError, match="does not match") as caught:
        load_lock(loaded, (*runtime_requirements(), "newcomer>=1"))
    assert "newcomer>=1" in caught.value.findings[0].why


@pytest.mark.parametrize(
    ("pattern", "new", "said"),
    [
        (r'sha256 = "[0-9a-f]{64}"', 'sha256 = "zz"', "sha256"),
        (r'path = "pool/', 'path = "../../etc/', "path"),
        (r'file = "', 'file = "../', "file"),
        (r"version = 1\n", "version = 2\n", "version"),
        (r'apt = \["libstdc\+\+6"', 'apt = ["less", "libstdc++6"', "edited by hand"),
        (r'name = "bash"', 'name = "bash;true"', "name"),
        (r"size = \d+", "size = -1", "size"),
    ],
)
def test_lock_tampered_is_refused(tmp_path: Path, pattern: str, new: str, said: str) -> None:
    loaded = mine(tmp_path)
    text, count = re.subn(pattern, new, loaded.lock_path.read_text(), count=1)
    assert count == 1
    loaded.lock_path.write_text(text)
    with pytest.raises(FairleadError) as caught:
        load_lock(loaded, runtime_requirements())
    assert any(said in f"{f.what} {f.why}" for f in caught.value.findings)


def test_differences_of_equal_inputs_are_none() -> None:
    inputs = inputs_of(load_recipe("mpi-base").recipe, runtime_requirements())
    assert differences(inputs, inputs) == []


def test_tree_key_follows_files_and_prefixes_not_labels(tmp_path: Path) -> None:
    base = load_recipe("mpi-base")
    lock: Lock = load_lock(base, runtime_requirements())[0]
    labels = mine(tmp_path, one=('title" = "mpi-base"', 'title" = "mine"'))
    assert tree_key(labels, lock) == tree_key(base, lock)
    moved = mine(tmp_path / "b", one=('prefix = "/opt/mpich"', 'prefix = "/opt/mpi"'))
    assert tree_key(moved, lock) != tree_key(base, lock)


def test_pip_target_lists_platforms_newest_first() -> None:
    options = target_of("3.11", "amd64", "2.36")
    platforms = [o.removeprefix("--platform=") for o in options if o.startswith("--platform=")]
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert platforms[-2:] == ["manylinux1_x86_64", "linux_x86_64"]
    at = platforms.index("manylinux_2_17_x86_64")
    assert platforms[at + 1] == "manylinux2014_x86_64"
    assert "manylinux_2_37_x86_64" not in platforms
    assert "--abi=cp311" in options
