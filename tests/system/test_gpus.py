"""Ranks on a real GPU: sums, and tensors of torch. One GPU serves, since two ranks get a host of their own each, by name.

FAIRLEAD_TEST_GPU_PYTHON names a Python with fairlead, torch for GPUs and mpi4py, whose MPI has its ``mpiexec`` on PATH. The
tests need root, who alone may name hosts. What came of it, on one H100, is in ``tests/recorded/nccl``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("FAIRLEAD_TEST_GPU_PYTHON", "")
PROGRAM = Path(__file__).with_name("programs") / "comm_devices.py"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
RANK = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
_HOST = f"""
echo "127.0.0.1 localhost gpu0 gpu1" > "$0.{RANK}" && mount --bind "$0.{RANK}" /etc/hosts &&
echo gpu{RANK} > /proc/sys/kernel/hostname && exec "$@"
"""

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not PYTHON or os.geteuid() != 0, reason="no Python for GPUs, or not root"),
]


def ranks(folder: Path, *words: object, apart: bool = True) -> subprocess.CompletedProcess[str]:
    """Two ranks on this machine's first GPU."""
    own = ("unshare", "--uts", "--mount", "sh", "-c", _HOST, str(folder / "hosts"))
    argv = ["mpiexec", "-n", "2", *(own if apart else ()), PYTHON, *map(str, words)]
    environ = {
        **os.environ, **AS_ROOT, "TEST_DEVICE": "cuda", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "0", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }  # fmt: skip
    return subprocess.run(
        argv, env=environ, capture_output=True, text=True, timeout=180, check=False
    )


def test_known_sums_are_right_and_their_edges_are_nccls(tmp_path: Path) -> None:
    words = ("--meet", tmp_path / "meet", "--most", 1 << 23, "--repeat", 3, "--json")
    done = ranks(tmp_path, "-m", "fairlead.prove", "--nccl-sums", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["holds"] and found["gb_s"] > 0
    assert {rank["host"] for rank in found["ranks"]} == {"gpu0", "gpu1"}


def test_two_ranks_of_one_host_on_one_gpu_are_refused_in_nccls_words(tmp_path: Path) -> None:
    words = ("--meet", tmp_path / "meet", "--most", 8192, "--repeat", 1)
    done = ranks(tmp_path, "-m", "fairlead.prove", "--nccl-sums", *words, apart=False)
    assert done.returncode == 122
    assert "Duplicate GPU detected" in done.stderr + done.stdout


def test_tensors_on_a_gpu_end_as_those_of_the_host(tmp_path: Path) -> None:
    done = ranks(tmp_path, PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    seen: dict[str, list[Any]] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"case"'):
            case = json.loads(line)
            seen.setdefault(case["case"], [None, None])[case["rank"]] = case["seen"]
    for right, bits, started, mean in seen["aggregate"]:
        assert right == [True] * 7 and started and mean == 0.5
        assert bits == seen["aggregate"][0][1]
    assert seen["broadcast"] == [[True], [True]]
    for *refused, after in seen["differ"]:
        assert all(one[0] in ("comm-signature", "comm-order") for one in refused)
        assert after == [0.5, 0.5]
    for host, device in seen["on_gpus"]:
        assert device == pytest.approx(host, rel=1e-3)
