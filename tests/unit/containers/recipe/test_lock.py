"""Locks: written and read back, matched with their recipe, and refused when they do not fit."""

from __future__ import annotations

import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.base.errors import FairleadError
from fairlead.base.paths import checkout
from fairlead.base.progress import Silent
from fairlead_build import resolving
from fairlead_build.cache.store import Cache
from fairlead_build.cli.recipe import recipe as recipe_verb
from fairlead_build.recipe.inherit import bundled_names
from fairlead_build.recipe.load import LoadedRecipe, addresses, load_recipe
from fairlead_build.recipe.lock import Lock, differences, inputs_of, load_lock, render
from fairlead_build.recipe.model import OLDEST_MINOR
from fairlead_build.resolve.pip import target_of
from fairlead_build.tree.tree import tree_key
from fairlead_build.tree.wheel import requirements_in, runtime_requirements


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


# With an index that is not at hand here; `fairlead recipe check` says so.
UNLOCKED = ("pytorch:vision",)
LOCKED = [a for name in bundled_names() for a in addresses(name) if a not in UNLOCKED]


@pytest.mark.parametrize("name", LOCKED)
def test_lock_bundled_matches_its_recipe(name: str) -> None:
    loaded = load_recipe(name)
    lock, digest = load_lock(loaded, runtime_requirements())
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert {d.index for d in lock.deb} == {"Debian bookworm main"}
    assert {w.index for w in lock.wheel} == {"PyPI", *loaded.recipe.packages.index.values()}
    # No host, no path of a machine: the file says index names only.
    text = loaded.lock_path.read_text()
    assert "://" not in text and not re.search(r"\b(deb|pypi)\.\w+\.(org|net)\b", text)


@pytest.mark.parametrize("name", LOCKED)
def test_lock_rendered_is_the_file_itself(name: str) -> None:
    loaded = load_recipe(name)
    lock, _ = load_lock(loaded, runtime_requirements())
    assert render(lock) == loaded.lock_path.read_text()


GPU = """
[recipe]
name = "gpu"
summary = "from a registry"
accelerator = "nvidia"
[base]
image = "docker://docker.io/nvidia/cuda:13.0.2-base-ubuntu24.04"
[mpi]
family = "mpich"
source = "wheel"
version = "3.4.3"
prefix = "/opt/mpich"
floor = "3.1"
[python]
version = "3.12"
prefix = "/opt/python"
[packages]
pip = ["mpi4py>=4.1,<4.2", "numpy>=2"]
"""


def test_lock_that_only_a_registry_can_make_is_asked_for_kindly(tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu/recipe.toml").write_text(GPU)
    name = str(tmp_path / "gpu")
    done = CliRunner().invoke(recipe_verb, ["check", name])
    assert done.exit_code == 0, done.output
    assert "not locked, because it starts from docker.io/nvidia/cuda" in done.output
    assert f"next: fairlead recipe lock {name}\n" in done.output


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
        (r"version = 2\n", "version = 1\n", "version"),
        (r'apt = \["libstdc\+\+6"', 'apt = ["less", "libstdc++6"', "edited by hand"),
        (r'name = "bash"', 'name = "bash;true"', "name"),
        (r"size = \d+", "size = -1", "size"),
        (r"  \{ name = \"less\"|  \{ name = \"bash\"[^\n]*\n", "", "packages were edited"),
        (r'"2.36-9', '"2.35-9', "packages were edited"),
        (r"source_date_epoch = 1", "source_date_epoch = 2", "packages were edited"),
        (r'packages_sha256 = "[0-9a-f]+"\n', "", "packages were edited"),
        (r'index = "Debian bookworm main"', 'index = "PyPI"', "Debian bookworm main"),
        (r'architecture = "amd64"\n', 'architecture = "arm64"\n', "edited by hand"),
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


def test_lock_names_every_kind_of_difference(tmp_path: Path) -> None:
    loaded = mine(
        tmp_path,
        one=('apt = ["libstdc++6"]', 'apt = ["less"]\nindex = { torch = "PyTorch CPU" }'),
        two=("[labels]", '[[source]]\nname = "x"\nversion = "1"\nindex = "PyPI"\n'
             'build = "wheel"\napt = ["cmake"]\npip = ["cython"]\n[labels]'),
    )  # fmt: skip
    with pytest.raises(FairleadError) as caught:
        load_lock(loaded, runtime_requirements())
    why = caught.value.findings[0].why
    for words in (
        "wants apt less",
        "wants index torch: PyTorch CPU",
        "wants source x 1 from PyPI",
        "wants apt for building cmake",
        "wants pip for building cython",
    ):
        assert words in why, why


def test_lock_inputs_of_a_source_by_address_hold_no_host(tmp_path: Path) -> None:
    source = '[[source]]\nname = "x"\nversion = "1"\nurl = "https://host.invalid/x-1.tgz"\n'
    source += f'sha256 = "{"0" * 64}"\nbuild = "wheel"\n[labels]'
    loaded = mine(tmp_path, one=("[labels]", source))
    inputs = inputs_of(loaded.recipe, runtime_requirements())
    assert f"x 1 with sha256 {'0' * 64}" in inputs.source


def test_lock_of_a_base_image_names_it(tmp_path: Path) -> None:
    loaded = mine(
        tmp_path,
        one=('distribution = "debian"\nsuite = "bookworm"', 'image = "docker://localhost:1/a:1"'),
    )
    with pytest.raises(FairleadError) as caught:
        load_lock(loaded, runtime_requirements())
    why = caught.value.findings[0].why
    assert "base image is docker://localhost:1/a:1 in the recipe, none in the lock" in why


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
    options = target_of("3.11", "amd64", "2.36").options
    platforms = [o.removeprefix("--platform=") for o in options if o.startswith("--platform=")]
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert platforms[-2:] == ["manylinux1_x86_64", "linux_x86_64"]
    at = platforms.index("manylinux_2_17_x86_64")
    assert platforms[at + 1] == "manylinux2014_x86_64"
    assert "manylinux_2_37_x86_64" not in platforms
    assert "--abi=cp311" in options


def test_pip_target_carries_what_conditions_see() -> None:
    markers = target_of("3.9", "arm64", "2.31", "3.9.2").markers
    assert (markers["python_version"], markers["python_full_version"]) == ("3.9", "3.9.2")
    assert markers["platform_machine"] == "aarch64"
    assert target_of("3.9", "amd64", "2.31").markers["python_full_version"] == "3.9.0"


@pytest.mark.parametrize(
    ("python", "ships"),
    [("", False), ("3.8", False), ("3.9", False), ("3.10", False), ("3.11", True), ("3.13", True)],
)
def test_only_an_image_whose_python_runs_fairlead_carries_it(
    python: str, ships: bool, tmp_path: Path
) -> None:
    text = '[recipe]\nname = "old"\n[base]\nimage = "docker://example.org/x:1"\n'
    text += f'[python]\nversion = "{python}"\n' if python else ""
    (tmp_path / "recipe.toml").write_text(text)
    recipe = load_recipe(tmp_path).recipe
    assert recipe.ships_fairlead is ships
    assert requirements_in(recipe) == (runtime_requirements() if ships else ())


def test_oldest_python_is_that_of_the_wheel() -> None:
    root = checkout()
    assert root is not None
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == f">=3.{OLDEST_MINOR}"


@pytest.mark.parametrize("where", ["lock", "archive"])
def test_lock_that_could_not_be_kept_resolves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    loaded = load_recipe("mpi-base")
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    monkeypatch.setattr(resolving, "_ground", lambda job: pytest.fail("it was resolved"))
    if where == "lock":
        loaded = replace(loaded, folder=below)
    with pytest.raises(FairleadError) as caught:
        keep = below if where == "archive" else None
        resolving.lock_recipe(loaded, Silent(), Cache(tmp_path / "cache"), keep=keep)
    assert caught.value.findings[0].check == f"{where}-unwritable"
