"""Kernels that a Jupyter server starts: on this machine, and as jobs of a real Slurm."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from tests.system import hosts, slurm
from tests.system.slurm import waited

from fairlead.notebook import variables

ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm here")


@contextmanager
def kernels(
    folder: Path, environ: Mapping[str, str], *words: str, ranks: int = 2
) -> Iterator[KernelManager]:
    """A manager of kernels as a server has it, whose one kernel is fairlead's."""
    spec = {
        "argv": [], "display_name": "ranks", "language": "python", "interrupt_mode": "message",
        "metadata": {
            "kernel_provisioner": {
                "provisioner_name": "fairlead",
                "config": {
                    "image": str(hosts.image()), "ranks": ranks, "arguments": ["--with-kernel", *words],
                    "environment": {"XDG_STATE_HOME": str(folder)},
                },
            }
        },
    }  # fmt: skip
    place = folder / "kernels" / "ranks"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))
    manager = KernelManager(
        kernel_name="ranks", kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(place.parent)])
    )
    manager.start_kernel(env=dict(environ), cwd=str(folder))
    try:
        yield manager
    finally:
        manager.shutdown_kernel()


def ran(manager: KernelManager, *cells: str) -> list[str]:
    """The text that each cell has put out, in a notebook as nbclient runs it."""
    document = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    client = NotebookClient(document, km=manager, timeout=120)
    client.kc = manager.client()
    client.kc.start_channels()
    client.kc.wait_for_ready(timeout=60)
    for number, cell in enumerate(document.cells):
        client.execute_cell(cell, number)
    client.kc.stop_channels()
    return ["".join(o.get("text", "") for o in cell.outputs) for cell in document.cells]


@pytest.mark.full
def test_server_starts_a_kernel_with_ranks_on_this_machine(tmp_path: Path) -> None:
    with kernels(tmp_path, os.environ) as manager:
        assert ran(manager, "%%ranks\nrank + size")[0].splitlines() == ["Out[0]: 2", "Out[1]: 3"]
        manager.restart_kernel()
        assert ran(manager, "%%ranks\ncomm.allreduce(1)") == ["Out[0-1]: 2\n"]
        (folder,) = (tmp_path / "fairlead/notebook").glob("kernel-*/")
    waited(lambda: (folder / "ended.txt").exists(), 30, "the session goes on")
    assert "shut down" in (folder / "ended.txt").read_text()


@pytest.mark.full
@ONLY_ROOT
def test_kernel_is_a_job_of_slurm_with_a_rank_on_each_of_two_nodes(tmp_path: Path) -> None:
    with slurm.slurm(names=("n1", "n2")) as cluster:
        environ = {**cluster.environ, "XDG_STATE_HOME": str(tmp_path)}
        with kernels(tmp_path, environ, "-N", "2", "--time", "10m") as manager:
            places, total, shown = ran(
                manager,
                "%%ranks\nimport socket; socket.gethostname()",
                "%%ranks\ncomm.allreduce(rank + 1)",
                "%ranks",
            )
            assert {line.split("'")[1] for line in places.splitlines()} == {"n1", "n2"}
            assert total == "Out[0-1]: 3\n"
            assert re.search(r"2 ranks: .*MPICH", shown)
            assert cluster.said("squeue", "--noheader", "-o", "%D").split() == ["2"]
            killed, again = ran(
                manager, "%ranks restart 1", "%%ranks\nsocket.gethostname() if rank == 0 else 0"
            )
            assert "2 new ranks" in killed and "'n" in again
        waited(cluster.empty, 60, "the job goes on")
        waited(lambda: not cluster.processes(), 30, "a process is left on a node")


@pytest.mark.full
@ONLY_ROOT
def test_job_that_runs_out_of_time_saves_what_it_was_asked_to_save(tmp_path: Path) -> None:
    with slurm.slurm(names=("n1", "n2")) as cluster:
        environ = {**cluster.environ, "XDG_STATE_HOME": str(tmp_path)}
        with kernels(tmp_path, environ, "-N", "2", "--time", "1m") as manager:
            ran(manager, "%%ranks\nw = rank", "y = 1", f"%ranks save w y --to {tmp_path}/kept")
            waited(cluster.empty, 150, "the job goes on")
        kept = {p.name for p in (tmp_path / "kept").glob("*.pickle")}
        assert kept == {"kernel.pickle", "rank-0.pickle", "rank-1.pickle"}


@pytest.mark.full
@ONLY_ROOT
def test_job_that_is_cancelled_saves_what_it_was_asked_to_save(tmp_path: Path) -> None:
    with slurm.slurm(names=("n1", "n2"), settings="KillWait=20\n") as cluster:
        environ = {**cluster.environ, "XDG_STATE_HOME": str(tmp_path)}
        with kernels(tmp_path, environ, "-N", "2", "--time", "30m") as manager:
            ran(
                manager,
                "%%ranks\nimport numpy\nw = numpy.full(1 << 20, rank + 1.0)",
                "y = 1",
                f"%ranks save w y --to {tmp_path}/kept",
                "%%ranks\nw *= 2",
            )
            cluster.run("scancel", f"--user={os.getuid()}")
            waited(cluster.empty, 60, "the job goes on")
        waited(lambda: not cluster.processes(), 30, "a process is left on a node")
    # The kernel is next to salloc, outside of the job, and saves as the session ends.
    (folder,) = (tmp_path / "fairlead/notebook").glob("kernel-*/")
    waited(lambda: (folder / "ended.txt").exists(), 30, "the session goes on")
    for rank in (0, 1):
        kept: dict[str, Any] = {}
        assert not variables.restore(tmp_path / f"kept/rank-{rank}.pickle", kept)
        assert kept["w"].sum() == (rank + 1) * 2 << 20
    assert (tmp_path / "kept/kernel.pickle").exists()
