"""Backends by declaration: one file adds one, and login nodes read all of them without NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.base.comm_backend import REGISTRY, CommFacts
from fairlead.base.errors import FairleadError
from fairlead.comm.settings import settings
from fairlead.session.gradients import choose

# All that a package has to bring: this module and, in its metadata, one line that names it.
MODULE = """
from fairlead.base.comm_backend import Availability, CommBackend, Setting


def connect(mpi, environ):
    from fairlead.comm.core import Comm

    class Marked(Comm):
        backend = "pigeon"

        def __init__(self, mpi):
            super().__init__(mpi)
            self.backend = f"pigeon {environ['PIGEON_LOFT']}"

    return Marked(mpi)


def available(facts):
    present = "pigeon" in (facts.wheels or {})
    return Availability(present, "" if present else "the image has no pigeon")


BACKEND = CommBackend(
    name="pigeon",
    summary="carrier pigeons",
    available=available,
    connect=connect,
    provided_by="use an image with pigeons",
    variables=lambda facts: {"PIGEON_LOFT": "roof"},
    folders=lambda facts: ("/opt/pigeon",),
    settings=(Setting("PIGEON_LOFT", "", "where they live"),),
)
"""


@pytest.fixture
def pigeon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Python's path with an installed package that declares the backend ``pigeon``."""
    (tmp_path / "pigeon_comm.py").write_text(MODULE)
    metadata = tmp_path / "pigeon_comm-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-comm\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[fairlead.comm_backends]\npigeon = pigeon_comm:BACKEND\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pigeon_comm", raising=False)
    return tmp_path


def python(
    *words: str, path: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Python with ``path`` first, as for an installed package."""
    folders = [*([str(path)] if path else []), *filter(None, sys.path)]
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), **environ},
    )


def test_bundled_backends_are_declared_without_numpy() -> None:
    code = """
import sys
from fairlead.base.comm_backend import REGISTRY
from fairlead.comm.settings import in_effect
assert REGISTRY.names()[:5] == ("native", "mpi4py", "horovod", "dl_comm", "nccl"), REGISTRY.names()
assert len(in_effect({})) > 20
assert "numpy" not in sys.modules and "mpi4py" not in sys.modules
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_ranks_that_choose_by_themselves_load_no_declaration() -> None:
    code = """
import sys
from importlib import metadata
metadata.entry_points = None
from fairlead import comm
comm.init()
assert not [name for name in sys.modules if "comm_backend" in name or "comm.backends" in name]
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_bundled_name_is_found_without_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    assert REGISTRY.find("mpi4py") is not None


def test_backend_of_another_package_is_in_help(pigeon: Path) -> None:
    done = python("-m", "fairlead", "run", "--help", path=pigeon)
    assert "nccl, pigeon, or auto" in " ".join(done.stdout.split()), done.stderr


def test_backend_of_another_package_is_chosen_from_facts(pigeon: Path) -> None:
    facts = CommFacts(
        asked="pigeon", asked_by="--comm", image="x", site="s", wheels={"pigeon": "1"}
    )
    choice = choose(facts)
    assert (choice.backend, choice.findings, choice.folders) == ("pigeon", (), ("/opt/pigeon",))
    assert choice.env == {"FAIRLEAD_COMM_BACKEND": "pigeon", "PIGEON_LOFT": "roof"}
    unasked = choose(CommFacts(modules=("/mpi4py/MPI.so",), wheels={}))
    assert unasked.backend == "native"
    (option,) = [option for option in unasked.others if option.backend == "pigeon"]
    assert (option.possible, option.why) == (False, "the image has no pigeon")
    assert "PIGEON_LOFT" in {setting.name for setting in settings()}


def test_backend_of_another_package_is_a_value_of_profiles(pigeon: Path) -> None:
    from fairlead.site.profile import CommSection

    assert CommSection(backend="pigeon").backend == "pigeon"
    assert "pigeon" in CommSection.model_json_schema()["properties"]["backend"]["enum"]


def test_backend_of_another_package_carries_the_arrays_of_a_rank(pigeon: Path) -> None:
    code = (
        "import numpy as np; from fairlead import comm;"
        "print(comm.init().backend, comm.init().forced, comm.aggregate([np.ones(2)])[0].tolist())"
    )
    done = python("-c", code, path=pigeon, FAIRLEAD_COMM_BACKEND="pigeon", PIGEON_LOFT="roof")
    assert done.stdout == "pigeon roof pigeon [1.0, 1.0]\n", done.stderr


def test_backend_that_cannot_be_loaded_is_left_out_of_lists_and_named_when_asked_for(
    pigeon: Path,
) -> None:
    (pigeon / "pigeon_comm.py").write_text("import no_such_module\n")
    assert "pigeon" not in REGISTRY.names()
    with pytest.raises(FairleadError, match="`pigeon` cannot be loaded") as caught:
        REGISTRY.find("pigeon")
    assert "no_such_module" in caught.value.findings[0].why
