"""Rendered recipes: the committed ones are up to date, and what stands in them is what is locked."""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import ExitCode, FairleadError
from fairlead_build.recipe.inherit import bundled_names
from fairlead_build.recipe.load import LoadedRecipe, addresses, file_name, load_recipe
from fairlead_build.recipe.lock import Lock, LockedBase
from fairlead_build.render import FORMS, _quoted, contents, lock_of, render, render_recipe
from fairlead_build.tree.steps import shell_word

GOLDEN = Path(__file__).parents[3] / "containers" / "rendered"
NAMES = [address for name in bundled_names() for address in addresses(name)]


def rendered(name: str) -> bool:
    """Whether a recipe can be rendered: it has a lock, or needs none."""
    loaded = load_recipe(name)
    return loaded.lock_path.is_file() or loaded.recipe.base.image is not None


ALL = [name for name in NAMES if rendered(name)]


@pytest.mark.parametrize("name", ALL)
def test_rendered_recipe_is_the_committed_one(name: str, request: pytest.FixtureRequest) -> None:
    loaded = load_recipe(name)
    folder = GOLDEN / file_name(name)
    if request.config.getoption("--update"):
        render_recipe(name, folder)
    wanted = contents(loaded, lock_of(loaded))
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert there == set(wanted), f"fairlead recipe render {name}"
    for path, (body, _) in wanted.items():
        old, new = (folder / path).read_text(), body.decode()
        diff = difflib.unified_diff(old.splitlines(), new.splitlines(), path, "rendered", n=1)
        assert old == new, "\n".join([*diff, f"next: fairlead recipe render {name}"])


def test_rendered_folders_are_those_of_the_recipes() -> None:
    assert {p.name for p in GOLDEN.iterdir()} == {file_name(name) for name in ALL}


@pytest.mark.parametrize("form", FORMS)
def test_rendered_text_names_every_locked_file_and_no_host(form: str) -> None:
    loaded = load_recipe("mpi-base")
    lock = lock_of(loaded)
    assert lock is not None
    text = render(loaded, lock, form)  # type: ignore[arg-type]
    for deb in lock.deb:
        assert f"'{deb.sha256}  {deb.path}'" in text
    for wheel in lock.wheel:
        assert f"'{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}'" in text
    assert not re.search(r"https?://", text)


@pytest.mark.parametrize("form", FORMS)
def test_rendered_shell_has_no_mistake_in_its_grammar(form: str) -> None:
    loaded = load_recipe("mpi-base")
    text = render(loaded, lock_of(loaded), form)  # type: ignore[arg-type]
    if form == "Containerfile":
        scripts = [s.removeprefix("RUN ") for s in re.split(r"(?<!\\)\n", text) if s[:4] == "RUN "]
    else:
        scripts = re.findall(r"^%post\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(scripts) == 3  # fetch, build from source, install
    for script in scripts:
        done = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


def _mine(tmp_path: Path, more: str) -> Path:
    """A recipe on mpi-base, with its lock: same packages, own files and variables."""
    folder = tmp_path / "mine"
    folder.mkdir()
    text = 'extends = "mpi-base"\n[recipe]\nname = "mine"\n' + more
    (folder / "recipe.toml").write_text(text)
    shutil.copy(load_recipe("mpi-base").lock_path, folder)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "x.conf").write_text("x\n")
    return folder


def test_render_writes_files_with_their_modes_and_takes_stale_ones_away(tmp_path: Path) -> None:
    recipe = _mine(tmp_path, '[files]\n"/opt/app/run" = "run.sh"\n"/etc/x.conf" = "x.conf"\n')
    result = render_recipe(recipe, tmp_path / "out")
    assert {f.change for f in result.files} == {"new"}
    assert (tmp_path / "out/files/etc/x.conf").read_text() == "x\n"
    assert (tmp_path / "out/files/opt/app/run").stat().st_mode & 0o777 == 0o755
    text = (tmp_path / "out/Containerfile").read_text()
    assert "COPY files/ /files/lay/" in text and "chmod 755 /opt/app/run" in text
    (recipe / "recipe.toml").write_text((recipe / "recipe.toml").read_text().split("[files]")[0])
    again = render_recipe(recipe, tmp_path / "out")
    assert {f.path: f.change for f in again.files}["files/etc/x.conf"] == "removed"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted([*FORMS, "given"])


def test_render_dry_run_writes_nothing(tmp_path: Path) -> None:
    result = render_recipe("mpi-base", tmp_path / "out", dry_run=True)
    assert {f.change for f in result.files} == {"new"} and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["Containerfile", "Singularity.def", "files"])
def test_render_into_a_folder_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("FROM scratch\n")
    with pytest.raises(FairleadError) as caught:
        render_recipe("mpi-base", tmp_path)
    assert caught.value.code == ExitCode.USAGE
    assert caught.value.findings[0].check == "render-folder"
    assert (tmp_path / name).read_text() == "FROM scratch\n"


def test_render_without_a_lock_is_refused(tmp_path: Path) -> None:
    recipe = _mine(tmp_path, "")
    (recipe / "lock.toml").unlink()
    with pytest.raises(FairleadError) as caught:
        render_recipe(recipe, tmp_path / "out")
    assert caught.value.findings[0].check == "lock-missing"


def test_render_on_a_registry_image_without_a_lock_says_that_nothing_is_pinned(
    tmp_path: Path,
) -> None:
    (tmp_path / "recipe.toml").write_text(
        '[recipe]\nname = "gpu"\n[base]\nimage = "docker://example.org/cuda:12.4-runtime"\n'
        '[mpi]\nfamily = "mpich"\nsource = "wheel"\nversion = "3.4.3"\n'
        '[python]\nversion = "3.10"\n[packages]\napt = ["less"]\npip = ["numpy>=2"]\n'
    )
    result = render_recipe(tmp_path, tmp_path / "out")
    assert not result.pinned
    for form in FORMS:
        text = (tmp_path / "out" / form).read_text()
        assert "NOT pinned" in text and "BASE=example.org/cuda:12.4-runtime\n" in text
        assert "libstdc++6 python3 python3-venv" in text and "'numpy>=2'" in text


@given(value=st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=40))
def test_rendered_variable_means_what_the_recipe_says_also_to_a_shell(value: str) -> None:
    line = f"export X={shell_word(value)}"
    assert not re.search(r"\{\{\s*\w+\s*\}\}", line)  # an argument of the build
    done = subprocess.run(["sh", "-c", f'{line}; printf %s "$X"'], capture_output=True)
    assert done.stdout.decode() == value


@pytest.mark.parametrize(
    ("value", "quoted"),
    [("a b", '"a b"'), ('say "x"', '"say \\"x\\""'), ("$HOME\\", '"\\$HOME\\\\"'), ("", '""')],
)
def test_rendered_variable_is_quoted_for_a_containerfile(value: str, quoted: str) -> None:
    assert _quoted(value) == quoted


def _with_source(tmp_path: Path) -> tuple[LoadedRecipe, Lock]:
    """mpi-base with a program that is built from the recipe's own folder, and patched."""
    recipe = _mine(
        tmp_path,
        '[[source]]\nname = "tool"\nversion = "1"\npath = "tool"\npatches = ["a.patch"]\n'
        "run = '''\nmkdir -p $DESTDIR/opt/tool\ncp {{x}} 'it''s' $DESTDIR/opt/tool\n'''\n",
    )
    (recipe / "tool").mkdir()
    (recipe / "tool" / "x").write_text("x")
    (recipe / "a.patch").write_text("")
    lock = lock_of(load_recipe("mpi-base"))
    assert lock is not None
    return load_recipe(recipe), lock


@pytest.mark.parametrize("form", FORMS)
def test_rendered_source_is_built_in_a_stage_of_its_own(tmp_path: Path, form: str) -> None:
    loaded, lock = _with_source(tmp_path)
    found = contents(loaded, lock)
    assert {"given/tool/a.patch", "given/tool/tree/x"} < set(found)
    text = found[form][0].decode()
    assert "patch -d /usr/src/fairlead/tool -p1 < /files/given/tool/a.patch" in text
    assert not re.search(r"\{\{\s*x", text)
    stages = {
        "Containerfile": ("FROM scratch AS build", "COPY --from=build /built/ /files/built/"),
        "Singularity.def": ("Stage: build", "%files from build\n    /built/ /files/built/"),
    }
    assert all(words in text for words in stages[form])


@pytest.mark.parametrize("form", FORMS)
def test_rendered_recipe_on_a_registry_image_starts_from_its_digest(form: str) -> None:
    loaded = load_recipe("mpi-base")
    lock = lock_of(loaded)
    assert lock is not None
    base = LockedBase(
        image="docker://example.org:5000/cuda:12.4",
        digest="sha256:" + "a" * 64,
        distribution="ubuntu",
        suite="jammy",
        glibc="2.35",
    )
    text = render(loaded, lock.model_copy(update={"base": base}), form)  # type: ignore[arg-type]
    assert f"BASE=example.org:5000/cuda@sha256:{'a' * 64}\n" in text
    assert "scratch" not in text and "dpkg/status" not in text
    assert f"'{lock.deb[0].sha256}  {lock.deb[0].path}'" in text
