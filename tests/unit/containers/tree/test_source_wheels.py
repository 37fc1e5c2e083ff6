"""Wheels built from source: what they are called, and what they require."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.base.errors import ExitCode, FairleadError
from fairlead_build.recipe.load import LoadedRecipe, RecipeSource, load_recipe
from fairlead_build.recipe.lock import load_lock
from fairlead_build.recipe.model import Source
from fairlead_build.tree.source_wheels import check_declared, requirement_findings
from fairlead_build.tree.wheel import requirements_in
from fairlead_build.tree.wheel_staging import Built


def built(folder: Path, name: str, version: str, *requires: str) -> Built:
    """A wheel in a folder of its own, as pip makes it."""
    place = folder / name
    place.mkdir(exist_ok=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    with zipfile.ZipFile(place / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "")
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n\n")
    return Built(place)


@pytest.fixture(scope="module")
def loaded() -> LoadedRecipe:
    return load_recipe("mpi-base")


def lacking(folder: Path, loaded: LoadedRecipe, *requires: str) -> str:
    """What the image of ``loaded`` lacks, as a warning says it."""
    lock, _ = load_lock(loaded, requirements_in(loaded.recipe))
    made = [built(folder, "other", "2.0"), built(folder, "app", "1.0", *requires)]
    wheel = made[0].wheel
    assert wheel is not None
    findings = requirement_findings(
        loaded, lock, made, {"tensorflow_cpu": wheel, "other_cpu": wheel}
    )
    return findings[0].what.partition(": ")[2] if findings else ""


@pytest.mark.parametrize(
    ("requires", "words"),
    [
        (("numpy", "mpi4py>=3"), ""),
        (("no-such>=2", "numpy"), "no-such>=2"),
        (("numpy>=99",), "numpy>=99 (it has "),
        (("no-such; python_version < '3'", "no-such; extra == 'dev'"), ""),
        (("Other==2.0",), ""),  # another source
        (("tensorflow",), "tensorflow"),  # a wheel of that beginning, without that module
    ],
)
def test_requirement_of_a_source_that_the_image_lacks_is_a_warning(
    tmp_path: Path, loaded: LoadedRecipe, requires: tuple[str, ...], words: str
) -> None:
    text = lacking(tmp_path, loaded, *requires)
    assert text.startswith(words) and bool(text) is bool(words)


def test_requirement_that_a_wheel_of_another_name_brings_is_met(
    tmp_path: Path, loaded: LoadedRecipe
) -> None:
    lock, _ = load_lock(loaded, requirements_in(loaded.recipe))
    cpu = built(tmp_path, "tensorflow", "2.0").wheel
    assert cpu is not None
    made = [built(tmp_path, "app", "1.0", "tensorflow>=2")]
    assert not requirement_findings(loaded, lock, made, {"tensorflow-cpu": cpu})
    assert requirement_findings(loaded, lock, made, {})


@pytest.mark.parametrize(
    ("name", "version", "fits"),
    [
        ("app", "1.0", True),
        ("App", "1.0.0", True),
        ("app", "1.0+cu12", True),
        ("app", "2.5", False),
        ("app", "1.0.dev3", False),
        ("other", "1.0", False),
    ],
)
def test_source_whose_wheel_is_not_what_the_recipe_declares_is_refused(
    tmp_path: Path, loaded: LoadedRecipe, name: str, version: str, fits: bool
) -> None:
    declared = Source(name="app", version="1.0", path="app", build="wheel")
    source = replace(RecipeSource(declared, (), ()), source=declared)
    made = built(tmp_path, name, version)
    if fits:
        return check_declared(loaded, source, made)
    with pytest.raises(FairleadError) as caught:
        check_declared(loaded, source, made)
    (finding,) = caught.value.findings
    assert (finding.check, caught.value.code) == ("source-declared", ExitCode.USAGE)
    assert f'version = "{version}"' in finding.remedy
