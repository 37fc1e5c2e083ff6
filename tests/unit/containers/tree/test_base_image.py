"""What is read out of a base image, and what the tree over it depends on; no engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead.image.packages import installed
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.load import LoadedRecipe, load_recipe
from fairlead_build.recipe.lock import Lock, LockedBase
from fairlead_build.render import lock_of
from fairlead_build.tree import engine_tree
from fairlead_build.tree.job import TreeJob

_STATUS = """\
Package: libc6
Status: install ok installed
Version: 2.36-9+deb12u10
Description: GNU C Library
 Version: 9 is part of this text

Package: gone
Status: deinstall ok config-files
Version: 1

Package: held
Status: hold ok installed
Version: 1:3-2
"""


def over(digit: str) -> tuple[LoadedRecipe, Lock]:
    """mpi-base, as if it were locked over a base image."""
    loaded = load_recipe("mpi-base")
    lock = lock_of(loaded)
    assert lock is not None
    base = LockedBase(
        image="docker://example.org/ml/base:1",
        digest="sha256:" + digit * 64,
        distribution="debian",
        suite="bookworm",
        glibc="2.36",
    )
    return loaded, lock.model_copy(update={"base": base})


def test_installed_packages_of_a_dpkg_database_leave_out_what_was_removed(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(_STATUS)
    assert installed(tmp_path).versions()["deb"] == {"libc6": "2.36-9+deb12u10", "held": "1:3-2"}


def test_tree_over_a_base_image_depends_on_the_base() -> None:
    keys = {engine_tree.tree_key(*over(digit)) for digit in "aab"}
    assert len(keys) == 2


def test_sources_over_a_base_image_are_refused_before_any_engine_is_asked(tmp_path: Path) -> None:
    loaded, lock = over("a")
    with pytest.raises(FairleadError) as caught:
        engine_tree.build_tree(TreeJob(loaded, lock, Cache(tmp_path / "cache"), Silent()), "k")
    (finding,) = caught.value.findings
    assert finding.check == "base-sources" and "mpi-ring" in finding.why
    assert not (tmp_path / "cache").exists()
