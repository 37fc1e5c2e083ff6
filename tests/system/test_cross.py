"""Images of one MPI family on hosts of another, for real: mpi4py crosses, compiled programs do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.system import hosts

from fairlead.base.errors import ExitCode
from fairlead_build.build import build

# A sum over ranks, and a message round them that no ring of one could make.
PROGRAM = """
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
total = numpy.zeros(20_000)
world.Allreduce(numpy.full(20_000, world.rank + 1.0), total)
left = world.sendrecv(world.rank, (world.rank + 1) % world.size, source=(world.rank - 1) % world.size)
print(world.size, total[-1], left, MPI.Get_library_version().splitlines()[0].split(",")[0])
"""


def openmpi_image() -> Path:
    made = build("mpi-base:openmpi").entry
    assert made is not None
    return Path(made.path)


@pytest.mark.parametrize(
    ("image", "prefix", "version"),
    [
        pytest.param(hosts.image, hosts.openmpi, "Open MPI v5.0.11", id="MPICH on Open MPI"),
        pytest.param(openmpi_image, hosts.mpich, "MPICH Version", id="Open MPI on MPICH"),
        pytest.param(openmpi_image, hosts.intel, "Intel(R) MPI Library", id="Open MPI on Intel"),
    ],
)
def test_python_by_mpi4py_runs_on_the_other_family_and_is_proved(
    image: object, prefix: object, version: str
) -> None:
    assert callable(image) and callable(prefix)
    words = ("run", "-n", "2", "--mpi", prefix(), image(), "--", "python3", "-c", PROGRAM)
    done = hosts.fairlead(*words, env=hosts.AS_ROOT, limit_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved on 2 ranks" in done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if version in line)
    assert [line.split()[:3] for line in lines] == [["2", "3.0", "0"], ["2", "3.0", "1"]], (
        done.stdout
    )


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("mpi-ring",), "handles and constants differ"),
        (("sh", "-c", "eval python3 -c 0"), "only Python programs"),
    ],
)
def test_whatever_may_be_compiled_is_refused_before_it_starts(
    command: tuple[str, ...], why: str
) -> None:
    words = ("run", "-n", "2", "--mpi", hosts.openmpi(), "--json", hosts.image(), "--", *command)
    done = hosts.fairlead(*words, env=hosts.AS_ROOT)
    assert done.returncode == ExitCode.PREFLIGHT_REFUSED, done.stdout + done.stderr
    found = {f["check"]: f for f in json.loads(done.stdout)["findings"]}
    assert why in found["abi-family"]["why"]


def test_shell_that_starts_python_alone_crosses_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ring.py").write_text(PROGRAM)
    text = "cd . && exec python3 ring.py"
    words = ("run", "-n", "2", "--mpi", hosts.openmpi(), hosts.image(), "--", "sh", "-c", text)
    done = hosts.fairlead(*words, env=hosts.AS_ROOT, limit_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved on 2 ranks" in done.stderr and done.stdout.count("Open MPI v5.0.11") == 2


def test_preflight_says_yes_for_python_and_no_for_the_image_as_a_whole() -> None:
    image, prefix = hosts.image(), hosts.openmpi()
    whole = hosts.fairlead("preflight", image, "--mpi", prefix)
    assert whole.returncode == ExitCode.PREFLIGHT_REFUSED and "--app python3" in whole.stdout
    words = ("preflight", image, "--mpi", prefix, "--app", "python3")
    python = hosts.fairlead(*words, env=hosts.AS_ROOT)
    assert python.returncode == 0 and "mpi4py crosses from" in python.stdout
