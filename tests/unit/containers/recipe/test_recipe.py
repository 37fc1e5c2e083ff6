"""Recipes at the door: bundled ones are sound, and every mistake is told at once with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead_build.recipe.checks import cross_mistakes
from fairlead_build.recipe.inherit import bundled_names
from fairlead_build.recipe.load import addresses, file_name, find, load_recipe

GOOD = """\
[recipe]
name = "tiny"
summary = "as small as can be"

[base]
suite = "bookworm"

[mpi]
family = "mpich"
source = "wheel"
version = "3.4.3"

[python]
version = "3.11"

[packages]
apt = ["less"]
pip = ["mpi4py>=4.1,<4.2"]

[env]
OMP_NUM_THREADS = "1"
"""


def write(folder: Path, text: str) -> Path:
    (folder / "recipe.toml").write_text(text)
    return folder


def mistakes(folder: Path, text: str) -> list[Finding]:
    with pytest.raises(FairleadError) as caught:
        load_recipe(write(folder, text))
    assert caught.value.code == ExitCode.USAGE
    assert all(f.what and f.why and f.remedy for f in caught.value.findings)
    return list(caught.value.findings)


@pytest.mark.parametrize("name", bundled_names())
def test_recipe_bundled_is_sound_and_verified(name: str) -> None:
    loaded = load_recipe(name)
    assert loaded.name == loaded.folder.name == name
    assert (loaded.folder / "verify").stat().st_mode & 0o111
    assert loaded.recipe.recipe.summary


def test_recipe_defaults_are_filled_in(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, GOOD)).recipe
    assert recipe.mpi is not None and recipe.python is not None
    assert (recipe.mpi.home, recipe.python.prefix) == ("/opt/mpich", "/opt/python")
    assert (recipe.image.compressor, recipe.image.level) == ("zstd", 3)


def test_recipe_digest_ignores_comments_and_sees_values(tmp_path: Path) -> None:
    first = load_recipe(write(tmp_path, GOOD)).digest
    assert load_recipe(write(tmp_path, "# a remark\n" + GOOD)).digest == first
    assert load_recipe(write(tmp_path, GOOD.replace("3.4.3", "3.4.2"))).digest != first


def test_recipe_three_mistakes_give_three_findings_with_lines(tmp_path: Path) -> None:
    text = GOOD.replace('version = "3.4.3"', 'verson = "3.4.3"\nversion = "3.4.3"')
    text = text.replace("compressor", "").replace('suite = "bookworm"', "suite = 12")
    text = text.replace('family = "mpich"', 'family = "mpch"')
    found = mistakes(tmp_path, text)
    assert [f.where.rsplit(":", 1)[1] for f in found] == ["6", "9", "11"]
    assert "Did you mean `mpich`?" in found[1].why
    assert "Did you mean `version`?" in found[2].why


def test_recipe_contradictions_are_reported_next_to_other_mistakes(tmp_path: Path) -> None:
    text = GOOD.replace('source = "wheel"', 'source = "apt"\nprefix = "/opt/mpich"') + "[labls]\n"
    found = mistakes(tmp_path, text)
    assert sorted(f.check for f in found) == ["contradiction", "unknown-key"]
    assert any("mpi.prefix" in f.what and f.where.endswith(":11") for f in found)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('version = "3.4.3"\n', "", "`version` is missing in [mpi]"),
        ('[python]\nversion = "3.11"\n', "", "needs a [python] table"),
        ('version = "3.11"', 'version = "3.12"', "`python.version` cannot be '3.12'"),
        ('version = "3.4.3"', 'version = "3.4.3"\nprefix = "/opt/python/mpi"', "overlaps"),
        ('version = "3.11"', 'version = "3.11"\nprefix = "/opt/mpich"', "overlaps"),
        ("[env]", '[files]\n"/opt/a" = "x"\n"/opt/a/b" = "x"\n[env]', "cannot be a folder"),
        ('version = "3.4.3"', 'version = "3.4.3"\nprefix = "opt"', "`mpi.prefix` cannot be 'opt'"),
        ("OMP_NUM_THREADS", "LD_LIBRARY_PATH", "a recipe cannot set"),
        ("OMP_NUM_THREADS", '"A B"', "A B"),
        ('"less"', '"Less!"', "`packages.apt.0` cannot be"),
        ("mpi4py>=4.1,<4.2", "mpi4py >>> 4", "is not a requirement"),
        ("mpi4py>=4.1,<4.2", "mpi4py @ https://x.example/m.whl", "names a URL"),
        ("[env]", '[files]\n"/proc/x" = "y"\n[env]', "belong to fairlead and the engines"),
        ("[env]", '[files]\n"/opt/../etc/passwd" = "y"\n[env]', "plain path"),
        ("[env]", '[files]\n"/opt/app" = "y"\n[env]', "is not a file"),
        (
            "[env]",
            '[files]\n"/opt/app" = "../../../etc/passwd"\n[env]',
            "outside the recipe's folder",
        ),
        ('name = "tiny"', 'name = "Tiny recipe"', "`recipe.name` cannot be"),
        ('name = "tiny"', 'name = "tiny', "is not valid TOML"),
    ],
)
def test_recipe_mistake_is_reported(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    found = mistakes(tmp_path, GOOD.replace(old, new))
    assert any(said in f"{f.what} {f.why}" for f in found), found


def test_recipe_file_keeps_its_mode_and_is_part_of_the_digest(tmp_path: Path) -> None:
    text = GOOD + '[files]\n"/opt/app/run" = "run"\n'
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o700)
    loaded = load_recipe(write(tmp_path, text))
    assert [(f.target, f.mode) for f in loaded.files] == [("/opt/app/run", 0o755)]
    (tmp_path / "run").write_text("#!/bin/sh\ntrue\n")
    assert load_recipe(tmp_path).digest != loaded.digest


def test_recipe_unknown_name_suggests_a_near_one() -> None:
    with pytest.raises(FairleadError) as caught:
        find("tensorflw")
    assert "Did you mean `tensorflow`?" in caught.value.findings[0].why


@pytest.mark.parametrize(
    "given_", ["./nowhere", "/", "", ".", "a/b/recipe.toml", "\0", "~nobody/x"]
)
def test_recipe_hopeless_path_is_a_finding(given_: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FairleadError) as caught:
        find(given_)
    assert caught.value.code == ExitCode.USAGE


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["mpi", "python", "base", "packages", "files", "env", "recipe", "image", "source", "x"]
)


@given(
    st.dictionaries(
        KEYS,
        VALUES
        | st.dictionaries(
            st.sampled_from(
                ["prefix", "source", "version", "suite", "pip", "PATH", "image", "components"]
            ),
            VALUES,
            max_size=4,
        ),
    )
)
def test_recipe_cross_checks_bear_any_data(data: dict[str, Any]) -> None:
    assert all(m.what and m.why for m in cross_mistakes(data))


@given(at=st.integers(0, len(GOOD)), cut=st.integers(0, 12), put=st.text(max_size=12))
def test_recipe_mangled_text_never_ends_in_a_traceback(
    tmp_path: Path, at: int, cut: int, put: str
) -> None:
    text = GOOD[:at] + put + GOOD[at + cut :]
    try:
        load_recipe(write(tmp_path, text))
    except FairleadError as exc:
        assert exc.code == ExitCode.USAGE
        assert all(f.what and f.remedy for f in exc.findings)


def test_load_recipe_remedy_can_be_typed_when_the_folder_has_a_blank(tmp_path: Path) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    (folder / "recipe.toml").write_text("x = 1\n")
    with pytest.raises(FairleadError) as caught:
        load_recipe(folder)
    assert f"`fairlead recipe check '{folder}'`" in caught.value.findings[0].remedy


def test_recipes_and_their_variants_do_not_share_a_file_name() -> None:
    shown = [file_name(address) for name in bundled_names() for address in addresses(name)]
    assert len(shown) == len(set(shown)), shown


def test_recipe_file_with_a_name_that_no_file_can_have_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    folder.mkdir()
    text = f'[recipe]\nname = "long"\n[base]\nsuite = "bookworm"\n[files]\n"/x" = "{"n" * 300}"\n'
    (folder / "recipe.toml").write_text(text)
    with pytest.raises(FairleadError) as caught:
        load_recipe(folder)
    assert caught.value.findings[0].check == "recipe-file"
