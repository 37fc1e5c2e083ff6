"""Every recipe that the project shows builds from its lock: in recipes/ and in examples/, whatever they extend."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system.hosts import ROOT

from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import load_lock
from fairlead_build.tree.wheel import requirements_in

LOCKS = sorted(p for top in ("recipes", "examples") for p in (ROOT / top).glob("*/lock*.toml"))


def test_there_are_locks_of_both() -> None:
    assert {p.parents[1].name for p in LOCKS} == {"recipes", "examples"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_lock_matches_its_recipe(lock: Path) -> None:
    variant = lock.name.removeprefix("lock").removesuffix(".toml")
    loaded = load_recipe(f"{lock.parent}{variant.replace('.', ':', 1)}")
    assert loaded.lock_path == lock
    load_lock(loaded, requirements_in(loaded.recipe))  # names what differs
