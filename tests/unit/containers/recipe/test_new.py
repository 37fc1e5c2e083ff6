"""`fairlead recipe new`: what it writes is sound at once, and it writes over nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.base.errors import FairleadError
from fairlead.base.json_schema import schema_of, schema_text
from fairlead_build.cli.recipe import recipe
from fairlead_build.recipe import new
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.model import Written


def make(folder: Path, *options: str) -> LoadedText:
    done = CliRunner().invoke(recipe, ["new", str(folder), "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


LoadedText = dict[str, object]


@pytest.mark.parametrize("parent", ["mpi-base", "tensorflow", "mpi-base:openmpi"])
def test_new_recipe_is_sound_and_extends_what_was_asked(tmp_path: Path, parent: str) -> None:
    make(tmp_path / "mine", "--from", parent)
    loaded, base = load_recipe(tmp_path / "mine"), load_recipe(parent)
    assert loaded.name == "mine"
    assert loaded.recipe.packages == base.recipe.packages
    assert loaded.recipe.mpi == base.recipe.mpi
    assert (tmp_path / "mine" / "recipe.schema.json").read_text() == schema_text(schema_of(Written))
    assert (
        (tmp_path / "mine" / "recipe.toml").read_text().startswith("#:schema recipe.schema.json\n")
    )


def test_new_recipe_on_a_folder_names_it_relatively(tmp_path: Path) -> None:
    make(tmp_path / "a" / "one")
    make(tmp_path / "b" / "two", "--from", str(tmp_path / "a" / "one"))
    assert 'extends = "../../a/one"' in (tmp_path / "b" / "two" / "recipe.toml").read_text()
    assert load_recipe(tmp_path / "b" / "two").recipe.python is not None


def test_new_recipe_dry_run_writes_nothing(tmp_path: Path) -> None:
    made = make(tmp_path / "mine", "--dry-run")
    assert 'extends = "mpi-base"' in str(made["text"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My_Image", "fairlead recipe new my-image"),
        ("tensorflow", "fairlead recipe new my-tensorflow --from tensorflow"),
        ("there", "fairlead recipe check"),
    ],
)
def test_new_recipe_refused_names_the_next_command(tmp_path: Path, name: str, said: str) -> None:
    make(tmp_path / "there")
    before = (tmp_path / "there" / "recipe.toml").read_text()
    with pytest.raises(FairleadError) as caught:
        new.plan(str(tmp_path / name), "mpi-base")
    assert said in caught.value.findings[0].remedy
    assert (tmp_path / "there" / "recipe.toml").read_text() == before


def test_new_recipe_on_nothing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FairleadError, match="no recipe"):
        new.plan(str(tmp_path / "mine"), "mpi-bse")
