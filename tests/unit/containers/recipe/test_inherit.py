"""Recipes on recipes: what is inherited, joined and replaced, and every mistake where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError, Finding
from fairlead_build.recipe.load import LoadedRecipe, addresses, file_name, find, load_recipe

BASE = """\
[recipe]
name = "base"
summary = "the base"

[base]
suite = "bookworm"

[mpi]
family = "mpich"
source = "wheel"
version = "3.4.3"
prefix = "/opt/mpi"

[python]
version = "3.11"

[packages]
apt = ["less", "procps"]
pip = ["numpy>=2", "Mpi4Py>=4.1,<4.2"]

[files]
"/opt/a" = "a.txt"
"/opt/b" = "a.txt"

[env]
A = "base"
B = "base"

[[source]]
name = "tool"
version = "1"
path = "tool"
run = "make install"

[variant.openmpi]
summary = "the base on Open MPI"
accelerator = "nvidia"
[variant.openmpi.mpi]
family = "openmpi"
source = "apt"
package = "libopenmpi3"
[variant.openmpi.packages]
apt = ["openmpi-bin"]

[architecture.arm64.env]
A = "arm"
"""

MINE = """\
extends = "../base"

[recipe]
name = "mine"

[packages]
apt = ["less", "file"]
pip = ["mpi4py==4.1.2", "einops"]
without = ["procps", "numpy"]
index = { einops = "Our index" }

[files]
"/opt/b" = "b.txt"

[env]
B = "mine"
"""


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name, text in (("base", BASE), ("mine", MINE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text(text)
    (tmp_path / "base" / "a.txt").write_text("base\n")
    (tmp_path / "base" / "tool").mkdir()
    (tmp_path / "base" / "tool" / "Makefile").write_text("install:\n")
    (tmp_path / "mine" / "b.txt").write_text("mine\n")
    return tmp_path


def edit(folders: Path, name: str, old: str, new: str) -> None:
    path = folders / name / "recipe.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def refused(given: str | Path) -> tuple[Finding, ...]:
    with pytest.raises(FairleadError) as caught:
        load_recipe(given)
    assert all(f.what and f.where and f.why and f.remedy for f in caught.value.findings)
    return caught.value.findings


def test_extends_tables_are_joined_replaced_and_left_out(folders: Path) -> None:
    loaded = load_recipe(folders / "mine")
    recipe = loaded.recipe
    assert loaded.name == "mine" and recipe.recipe.summary == ""
    assert recipe.packages.apt == ("less", "file")
    assert recipe.packages.pip == ("mpi4py==4.1.2", "einops")
    assert recipe.packages.index == {"einops": "Our index"}
    assert recipe.env == {"A": "base", "B": "mine"}
    assert recipe.mpi is not None and recipe.mpi.prefix == "/opt/mpi"
    assert [s.source.name for s in loaded.sources] == ["tool"]
    assert [f.target for f in loaded.sources[0].tree] == ["Makefile"]
    assert [p.parent.name for p in loaded.paths] == ["base", "mine"]


def test_extends_files_come_from_the_folder_they_were_written_in(folders: Path) -> None:
    laid = {f.target: f.source.read_text() for f in load_recipe(folders / "mine").files}
    assert laid == {"/opt/a": "base\n", "/opt/b": "mine\n"}


def test_extends_a_table_that_says_one_thing_is_replaced_whole(folders: Path) -> None:
    edit(
        folders,
        "mine",
        "[files]",
        '[mpi]\nfamily = "mpich"\nsource = "wheel"\nversion = "4.0"\n[files]',
    )
    mpi = load_recipe(folders / "mine").recipe.mpi
    assert mpi is not None and (mpi.version, mpi.prefix) == ("4.0", None)


def test_variant_is_an_image_and_a_lock_of_its_own(folders: Path) -> None:
    loaded = load_recipe(f"{folders}/base:openmpi")
    assert loaded.name == "base:openmpi" and loaded.lock_path.name == "lock.openmpi.toml"
    assert loaded.recipe.recipe.summary == "the base on Open MPI"
    assert loaded.recipe.recipe.accelerator == "nvidia"
    assert loaded.recipe.mpi is not None and loaded.recipe.mpi.family == "openmpi"
    assert loaded.recipe.packages.apt == ("less", "procps", "openmpi-bin")
    assert loaded.digest != load_recipe(folders / "base").digest
    assert addresses(str(folders / "base")) == [str(folders / "base"), f"{folders}/base:openmpi"]
    assert file_name(loaded.name) == "base-openmpi"


def test_architecture_lays_its_tables_over_before_the_variant(folders: Path) -> None:
    def arm(given: str) -> LoadedRecipe:
        return load_recipe(given, "arm64")

    edit(folders, "base", "[architecture", '[variant.openmpi.env]\nB = "variant"\n[architecture')
    assert arm(f"{folders}/base").recipe.env == {"A": "arm", "B": "base"}
    assert arm(f"{folders}/base").lock_path.name == "lock.arm64.toml"
    assert arm(f"{folders}/base:openmpi").recipe.env == {"A": "arm", "B": "variant"}
    assert arm(f"{folders}/base:openmpi").lock_path.name == "lock.openmpi.arm64.toml"
    # What is extended is taken as it is on that architecture; one's own keys come after.
    assert arm(f"{folders}/mine").recipe.env == {"A": "arm", "B": "mine"}


def test_extends_may_name_a_variant(folders: Path) -> None:
    edit(folders, "mine", '"../base"', '"../base:openmpi"')
    loaded = load_recipe(folders / "mine")
    assert loaded.recipe.mpi is not None and loaded.recipe.mpi.family == "openmpi"
    assert loaded.name == "mine" and loaded.recipe.recipe.accelerator == "none"


def test_extends_bundled_recipe_by_name(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        'extends = "mpi-base"\n[recipe]\nname = "mine"\n[packages]\npip = ["einops"]\n'
    )
    pip = load_recipe(tmp_path).recipe.packages.pip
    assert pip == (*load_recipe("mpi-base").recipe.packages.pip, "einops")


def test_mistakes_of_all_files_are_reported_at_once_each_with_its_line(folders: Path) -> None:
    edit(folders, "base", 'family = "mpich"', 'family = "mpch"')
    edit(folders, "mine", 'B = "mine"', "B = 3")
    found = refused(folders / "mine")
    assert {f.where for f in found} == {
        f"{folders}/base/recipe.toml:9",
        f"{folders}/mine/recipe.toml:16",
    }


def test_contradiction_across_files_is_shown_where_it_was_written(folders: Path) -> None:
    edit(folders, "mine", "[files]", '[python]\nversion = "3.11"\nprefix = "/opt/mpi"\n[files]')
    (found,) = refused(folders / "mine")
    assert "overlaps" in found.what and found.where == f"{folders}/base/recipe.toml:12"
    edit(folders, "mine", '"/opt/b"', '"/opt/b/c"')
    edit(folders, "mine", "[env]", '"/opt/b" = "b.txt"\n[env]')
    above = next(f for f in refused(folders / "mine") if "cannot be a folder" in f.why)
    assert above.where == f"{folders}/mine/recipe.toml:16"


@pytest.mark.parametrize(
    ("extends", "check", "said"),
    [
        ("../bse", "recipe-extends", "holds no recipe.toml"),
        ("base", "recipe-extends", 'write "../base"'),
        ("mpi-bse", "recipe-extends", "Did you mean `mpi-base`?"),
        ("", "recipe-extends", "no bundled recipe"),
        (".", "recipe-extends", "mine extends mine"),
        ("../base:opnmpi", "recipe-variant", "Did you mean `openmpi`?"),
        ("../base\\u0000", "recipe-extends", "holds no recipe.toml"),
    ],
)
def test_extends_nothing_sound_is_reported(
    folders: Path, extends: str, check: str, said: str
) -> None:
    edit(folders, "mine", '"../base"', f'"{extends}"')
    found = refused(folders / "mine")
    assert any(f.check == check and said in f.why for f in found), found


def test_extends_in_a_circle_is_reported_with_the_way_round(folders: Path) -> None:
    edit(folders, "base", "[recipe]", 'extends = "../mine"\n[recipe]')
    found = refused(folders / "mine")
    circle = next(f for f in found if f.check == "recipe-extends")
    assert circle.why == "mine extends base extends mine"
    assert circle.where == f"{folders}/base/recipe.toml:1"


def test_variant_unknown_is_reported_and_is_not_inherited(folders: Path) -> None:
    (found,) = refused(f"{folders}/base:opnmpi")
    assert found.check == "recipe-variant" and "Did you mean `openmpi`?" in found.why
    (found,) = refused(f"{folders}/mine:openmpi")
    assert "variants are not inherited" in found.why


def test_without_of_nothing_inherited_is_reported(folders: Path) -> None:
    edit(folders, "mine", '"procps", "numpy"]', '"procps", "nmpy"]')
    (found,) = refused(folders / "mine")
    assert found.check == "packages-without" and "Did you mean `numpy`?" in found.why
    assert found.where == f"{folders}/mine/recipe.toml:9"


def test_variant_called_like_an_architecture_is_refused(folders: Path) -> None:
    edit(folders, "base", "[architecture", "[variant.arm64]\n[architecture")
    assert any("cannot be named `arm64`" in f.what for f in refused(folders / "base"))


def test_find_folder_with_a_colon_comes_before_a_variant(folders: Path) -> None:
    (folders / "base").rename(folders / "base:one")
    assert find(folders / "base:one")[1] == ""
    assert find(f"{folders}/base:one:openmpi")[1] == "openmpi"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('path = "tool"', 'path = "tool"\nindex = "PyPI"', "exactly one of `index`, `url`, `path`"),
        ('path = "tool"', 'url = "https://x.invalid/t.tgz"', "one of `url` and `sha256`"),
        ('run = "make install"', "", "exactly one of `build`, `run`"),
        ('path = "tool"', 'path = "../mine"', "outside the recipe's folder"),
        ('path = "tool"', 'path = "nowhere"', "is not a file and holds none"),
        ('path = "tool"', 'path = "tool"\npatches = ["x.patch"]', "is not a file"),
        ("[[source]]", '[[source]]\nname = "Tool"\nversion = "2"\npath = "a.txt"\nrun = "x"\n[[source]]', "two sources"),
        ('suite = "bookworm"', "", "`suite` is missing in [base]"),
        ('suite = "bookworm"', 'suite = "bookworm"\nimage = "docker://x/y:1"', "cannot be combined with"),
        ('suite = "bookworm"', 'suite = "noble"\ndistribution = "ubuntu"\ncomponents = ["contrib"]', "Ubuntu has main"),
        ('[base]\nsuite = "bookworm"\n', "", "`base` is missing"),
        ('"numpy>=2"', '"numpy>=2", "torch==2.13.0+cpu"', "does not say where"),
    ],
)  # fmt: skip
def test_recipe_mistake_of_the_new_tables_is_reported(
    folders: Path, old: str, new: str, said: str
) -> None:
    edit(folders, "base", old, new)
    assert any(said in f"{f.what} {f.why}" for f in refused(folders / "base"))


def test_link_in_a_circle_among_the_files_of_a_source_is_refused(folders: Path) -> None:
    (folders / "base" / "tool" / "loop").symlink_to("loop")
    assert any("symbolic links" in f.why for f in refused(folders / "base"))


def test_source_files_are_part_of_the_recipe(folders: Path) -> None:
    before = load_recipe(folders / "mine").digest
    (folders / "base" / "tool" / "Makefile").write_text("install: all\n")
    assert load_recipe(folders / "mine").digest != before
