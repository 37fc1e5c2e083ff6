"""What a rank spawns, and programs that end without MPI_Finalize."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system import hosts

SPAWN = """\
import os, sys
from mpi4py import MPI
parent = MPI.Comm.Get_parent()
if parent != MPI.COMM_NULL:
    mapped = [w.split()[-1] for w in open('/proc/self/maps') if 'libmpi.so' in w]
    parent.send((MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, set(mapped), sys.argv[1:], os.environ.get('MINE'), os.environ.get('MPIR_CVAR_CH4_CMA_ENABLE')), 0)
    parent.Disconnect()
    sys.exit()
world, me = MPI.COMM_WORLD, [__file__]
for made in (
    world.Spawn(sys.executable, [*me, 'a'], 2),
    world.Spawn_multiple([sys.executable] * 2, [[*me, 'c'], [*me, 'd', 'e']], [1, 1]),
):
    if world.rank == 0:
        print([made.recv(source=rank) for rank in range(2)], flush=True)
    made.Disconnect()
"""
POOL = """\
import os
from mpi4py.futures import MPIPoolExecutor
def work(n):
    return n * n, os.path.exists('/opt/fairlead/mpi')
if __name__ == '__main__':
    with MPIPoolExecutor(2) as pool:
        print(list(pool.map(work, range(3))), flush=True)
"""
MPI = "/opt/fairlead/mpi/lib/libmpi.so.12"


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        ("2", ()),
        ("2", ("--engine-arg=--userns",)),
        ("2", ("--engine", "charliecloud")),
        pytest.param(
            "1", ("--engine-arg=--userns", "--container-per-rank"), marks=pytest.mark.full
        ),
        pytest.param("2", ("--engine", "podman"), marks=pytest.mark.full),
    ],
)
def test_spawned_programs_run_in_the_container_on_the_hosts_mpi(
    ranks: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spawn.py").write_text(SPAWN)
    words = ("run", "-q", "-n", ranks, "--env", "MINE=a b", *options, hosts.image(), "--")
    done = hosts.fairlead(*words, "python3", tmp_path / "spawn.py")
    assert done.returncode == 0, done.stdout + done.stderr
    one, several = done.stdout.splitlines()
    # In a node's container, memory is shared as among its ranks.
    rest = ("a b", "0" if "--container-per-rank" in options else None)
    assert one == str([(n, 2, {MPI}, ["a"], *rest) for n in (0, 1)])
    assert several == str([(0, 2, {MPI}, ["c"], *rest), (1, 2, {MPI}, ["d", "e"], *rest)])


def test_pool_of_mpi4py_works_in_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pool.py").write_text(POOL)
    done = hosts.fairlead("run", "-q", "-n", "1", hosts.image(), "--", "python3", "pool.py")
    assert done.stdout.strip() == str([(n * n, True) for n in range(3)]), done.stderr


@pytest.mark.parametrize("options", [(), ("--engine-arg=--userns",)])
def test_program_may_end_without_finalize(options: tuple[str, ...]) -> None:
    """Hydra kills the others of a node when the first one's connection goes."""
    code = "import mpi4py; mpi4py.rc.finalize = False; from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
    for _ in range(4):
        done = hosts.fairlead(
            "run", "-q", "-n", "4", *options, hosts.image(), "--", "python3", "-c", code
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_image_without_python_keeps_the_ranks_exit_code(tmp_path: Path) -> None:
    from fairlead.base.progress import Silent
    from fairlead_build.formats.sandbox import unpack

    unpack(hosts.image(), tmp_path / "image", Silent())
    for path in (
        *(tmp_path / "image").glob("opt/python/bin/python*"),
        *(tmp_path / "image").glob("usr/bin/python*"),
    ):
        path.unlink()
    done = hosts.fairlead("run", "-n", "2", tmp_path / "image", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3, done.stderr
    assert "python" not in done.stderr.lower()


@pytest.mark.parametrize("closes", [True, False])
def test_descriptor_of_the_launcher_that_a_program_closes_is_named(closes: bool) -> None:
    inner = ["python3", "-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"]
    code = f"import subprocess, sys; sys.exit(subprocess.call({inner}, close_fds={closes}))"
    done = hosts.fairlead("run", "-n", "2", hosts.image(), "--", "python3", "-c", code)
    assert (done.returncode == 0) is not closes, done.stderr
    assert ("error[rank-cut-off]: rank " in done.stderr) is closes
    assert closes or done.stdout.split() == ["2", "2"]
