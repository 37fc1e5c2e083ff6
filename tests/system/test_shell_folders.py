"""A cache that no container shows: programs of the ranks are not led there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import fairlead

SAY = ("sh", "-c", 'echo "${XDG_CACHE_HOME-none}"')


@pytest.fixture
def aside() -> Iterator[Path]:
    """A folder that is neither of the home nor a temporary one."""
    folder = Path(tempfile.mkdtemp(dir="/var/lib"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write there")
@pytest.mark.parametrize(
    "engine", ["apptainer", pytest.param("charliecloud", marks=pytest.mark.full)]
)
def test_cache_that_the_container_does_not_show_is_not_named_to_ranks(
    engine: str, aside: Path
) -> None:
    run = ("run", "-n", "2", "--engine", engine)
    env = hosts.new_cache(aside)
    done = fairlead(*run, hosts.image(), "--", *SAY, env=env)
    assert (done.returncode, done.stdout) == (0, "none\n" * 2), done.stderr
    shown = fairlead(*run, "--bind", aside, hosts.image(), "--", *SAY, env=env)
    assert (shown.returncode, shown.stdout) == (0, f"{aside}\n" * 2), shown.stderr
    # A batch job's: what is not there when a program asks for a temporary file is an error.
    made = fairlead(*run, hosts.image(), "--", "mktemp", env=env | {"TMPDIR": str(aside)})
    assert made.returncode == 0 and made.stdout.count("tmp.") == 2, made.stderr
    own = fairlead(*run, "--env", "XDG_CACHE_HOME=/tmp/mine", hosts.image(), "--", *SAY, env=env)
    assert (own.returncode, own.stdout) == (0, "/tmp/mine\n" * 2), own.stderr
