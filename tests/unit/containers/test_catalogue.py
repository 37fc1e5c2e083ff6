"""The page on the bundled recipes says what their locks say."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from tools.catalogue import FIGURES, PAGE, Figures, every, page, read_figures

from fairlead_build.recipe.load import load_recipe

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_catalogue_page_is_made_of_the_locks() -> None:
    wanted = page(read_figures(REFERENCE / FIGURES))
    assert (REFERENCE / PAGE).read_text() == wanted, "run `make catalogue`"


def test_catalogue_figures_are_of_recipes_that_exist() -> None:
    assert set(read_figures(REFERENCE / FIGURES)) <= set(every())


def test_catalogue_page_drops_figures_of_another_lock() -> None:
    locked = hashlib.sha256(load_recipe("mpi-base").lock_path.read_bytes()).hexdigest()
    figures = Figures(locked, 76_400_000, "a" * 64, "b" * 64)
    output = page({"mpi-base": figures})
    assert "| 76 MB |" in output and f"| `{'a' * 64}` | `{'b' * 64}` |" in output
    stale = page({"mpi-base": replace(figures, lock_sha256="c" * 64)})
    assert "| 76 MB |" not in stale and "a" * 64 not in stale


def test_catalogue_page_reports_why_a_recipe_has_no_lock() -> None:
    output = page({})
    for name in every():
        if not load_recipe(name).lock_path.is_file():
            (row,) = [line for line in output.splitlines() if line.startswith(f"| `{name}` |")]
            reasons = ("docker.io/nvidia/cuda", "nvidia accelerators", "packages from PyTorch CPU")
            assert any(reason in row for reason in reasons)
