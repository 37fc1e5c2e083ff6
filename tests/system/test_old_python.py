"""An image whose Python is older than fairlead's own: locked here, built, swapped and proved."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system import hosts

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead_build.build import build
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.load import load_recipe
from fairlead_build.resolving import lock_recipe

RECIPE = """
[recipe]
name = "debian11"
[base]
suite = "bullseye"
[mpi]
family = "mpich"
source = "wheel"
version = "3.4.3"
[python]
version = "3.9"
[packages]
pip = ["mpi4py>=4.1,<4.2", "pytest==8.*"]
"""
PROGRAM = "import sys, tomli; from mpi4py import MPI; print(sys.version_info[:2], MPI.COMM_WORLD.allreduce(1))"


@pytest.mark.full
def test_image_of_debian_11_is_locked_built_swapped_and_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_INDEX_DEBIAN", "http://deb.debian.org/debian")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    loaded = load_recipe(tmp_path)
    try:
        lock = lock_recipe(loaded, Silent(), Cache.default())
    except FairleadError as exc:
        if exc.findings[0].check == "apt-source-missing":
            pytest.skip(exc.findings[0].what)
        raise
    wheels = {w.name for w in lock.wheel}
    # What pytest asks for below Python 3.11, and nothing that only fairlead's runtime needs.
    assert {"tomli", "exceptiongroup", "mpi4py", "mpich"} <= wheels
    assert not wheels & {"pydantic", "rich", "tomlkit"}
    entry = build(tmp_path).entry
    assert entry is not None and entry.wheel_sha256 == ""
    done = hosts.fairlead("run", "-n", "2", "--json", entry.path, "--", "python3", "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    proof = hosts.answer(done)["proof"]
    assert proof["holds"] and len(proof["ranks"]) == 2
    assert done.stderr.count("(3, 9) 2") == 2, done.stderr
    refused = hosts.fairlead("run", "-n", "2", entry.path, "--", "python3", "-m", "fairlead.prove")
    assert refused.returncode == 121 and "does not contain fairlead" in refused.stderr
    refused = hosts.fairlead("bench", "collectives", entry.path, "-o", tmp_path / "bench")
    assert refused.returncode == 121 and "does not contain fairlead" in refused.stderr
    assert "needs Python 3.11" in hosts.fairlead("inspect", entry.path).stdout
