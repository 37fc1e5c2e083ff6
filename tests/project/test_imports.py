"""What every rank imports: at 10,000 ranks each file read is a storm on the file system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fairlead

_REPORT = """
import sys
sys.path[:0] = sys.argv[2:]
before = set(sys.modules)  # a distribution's Python may bring modules of its own
__import__(sys.argv[1])
print(*(sys.modules if "-S" in sys.orig_argv else set(sys.modules) - before))
"""


def imported(module: str, *options: str, path: str = "") -> set[str]:
    """The modules of a fresh process that has imported ``module``, folder ``path`` coming first."""
    argv = [sys.executable, "-I", *options, "-c", _REPORT, module, *filter(None, [path])]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "fairlead.comm",
        "fairlead.prove",
        "fairlead.perf.measure.ranks.stragglers",
        "fairlead.perf.measure.ranks.messages",
    ],
)
def test_imports_of_what_every_rank_runs_are_few(module: str) -> None:
    names = {name.partition(".")[0] for name in imported(module)}
    # An editable installation adds a finder, whose name begins with an underscore.
    names = {name for name in names if not name.startswith("_")}
    assert names - sys.stdlib_module_names <= {"fairlead", "numpy", "mpi4py"}


def test_imports_of_comm_beyond_numpy_are_a_handful() -> None:
    ours = {name for name in imported("fairlead.comm") if name.startswith("fairlead")}
    assert len(ours) <= 15, sorted(ours)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the bar is for the images' Python")
def test_imports_of_the_probe_stay_below_their_bar() -> None:
    folder = str(Path(fairlead.__file__).parent)
    # As the probe job starts it: a file of its own, whose Python has no site customisation.
    found = imported("prove", "-S", path=folder)
    assert "prove" in found and not any(name.startswith("fairlead") for name in found)
    assert len(found - {"prove"}) < 60, sorted(found)  # there it is `__main__`


def test_imports_of_what_ranks_run_leave_mpi_to_init() -> None:
    assert not any(name.startswith("mpi4py") for name in imported("fairlead.comm"))
