"""The bundled recipes keep their word: a folder with an executable ``verify`` is a test.

Every ``verify*`` of a recipe runs in the image of each of its variants that has a lock, on the
image's own MPI and with the host's in its place. What is quick to build runs in `make test`, the
rest in `make test-full`. Comments in the scripts say how: ``# ranks: 3``, ``# not for: RECIPE``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import hosts
from tools.catalogue import FIGURES, every, measure, read_figures

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead_build.build import build
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.load import load_recipe

QUICK = ("mpi-base", "mpi-base:openmpi", "tensorflow")
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
# Open MPI refuses root, as whom tests may run.


def scripts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("verify*") if path.stat().st_mode & 0o111)


def comment(script: Path, key: str) -> str:
    found = re.search(rf"^# {key}: (.*)$", script.read_text(), re.MULTILINE)
    return found[1] if found else ""


def collected() -> Iterator[object]:
    for recipe in every():
        loaded = load_recipe(recipe)
        if not loaded.lock_path.is_file():
            continue
        for script in scripts(loaded.folder):
            if recipe in comment(script, "not for").split():
                continue
            for mpi in ("container", "host"):
                marks = [] if recipe in QUICK and mpi == "host" else [pytest.mark.full]
                name = f"{recipe}-{script.name}-{mpi}"
                yield pytest.param(recipe, script, mpi, marks=marks, id=name)


@pytest.mark.parametrize(("recipe", "script", "mpi"), list(collected()))
def test_recipe_verify_passes(recipe: str, script: Path, mpi: str) -> None:
    built = build(recipe)
    assert built.entry is not None
    options: list[str | Path] = ["--mpi", mpi]
    family = load_recipe(recipe).recipe.mpi
    if family is not None and family.family == "openmpi":
        own = hosts.openmpi()
        options = (
            ["--mpi", own] if mpi == "host" else ["--mpi", mpi, "--launcher", own / "bin/mpiexec"]
        )
    ranks = comment(script, "ranks") or "2"
    place = f"/mnt/{script.parent.name}/{script.name}"
    bind = f"{script.parents[1]}:/mnt:ro"
    done = hosts.fairlead(
        "run", "-n", ranks, *options, "--bind", bind, built.entry.path, "--", place,
        env=hosts.AS_ROOT, limit_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^ok: ", done.stdout, re.MULTILINE)) == 1, done.stdout


@pytest.mark.full
@pytest.mark.parametrize("recipe", [a for a in every() if load_recipe(a).lock_path.is_file()])
def test_recipe_gives_the_digests_of_the_table(recipe: str) -> None:
    kept = read_figures(REFERENCE / FIGURES)[recipe]
    found = measure(recipe, Cache.default(), Silent())
    assert (found.squashfs_sha256, found.tree_sha256) == (kept.squashfs_sha256, kept.tree_sha256), (
        "run `make catalogue`"
    )


@pytest.mark.full
def test_recipe_of_three_lines_extends_a_bundled_one() -> None:
    image = build(REFERENCE.parents[1] / "examples" / "my-pytorch").outputs[0]
    code = "import einops, torch; print(einops.rearrange(torch.arange(6), '(a b) -> b a', a=2).tolist())"
    done = hosts.fairlead("run", "--mpi", "container", image, "--", "python3", "-c", code)
    assert done.stdout == "[[0, 3], [1, 4], [2, 5]]\n", done.stdout + done.stderr


def test_recipe_without_a_lock_is_refused_by_name_of_the_command() -> None:
    recipe = "pytorch:vision"
    with pytest.raises(FairleadError) as caught:
        build(recipe)
    (finding,) = caught.value.findings
    assert finding.check == "lock-missing"
    assert f"fairlead recipe lock {recipe}" in finding.remedy
