"""NCCL's network, proved in a real launch: a program in the image writes what NCCL would write, where NCCL would."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import answer
from tests.system.test_nccl import Does, host_plugin, launched
from tests.system.test_nccl import image as image

from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead.base.nccl_verdict import Expected
from fairlead.proof.nccl import NcclProof
from fairlead.session.model import Choices, Launched, LaunchOptions
from fairlead.session.prepare import prepare
from fairlead.session.run import launch_proved
from fairlead.swap.model import Request

PLUGIN = "/opt/fairlead/nccl/libnccl-net.so"
PLANNED = Expected(("Libfabric",), ("cxi",), PLUGIN, interface=8)
SAYS = """
import os, sys, time
host = os.uname().nodename
name = os.environ["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(os.getpid()))
assert os.environ["NCCL_DEBUG"] == "INFO" and "NET" in os.environ["NCCL_DEBUG_SUBSYS"]
with open(name, "w") as log:
    for text in sys.argv[2:]:
        print(f"{host}:{os.getpid()}:1 [0] NCCL INFO {text}", file=log, flush=True)
time.sleep(float(sys.argv[1]))
"""
GOOD = (
    "NET/Plugin: Loaded net plugin Libfabric (v8)",
    "NET/OFI Selected provider is cxi, fabric is cxi (found 1 nics)",
    "Using network Libfabric",
    "ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x1 - Init COMPLETE",
)
MISSING = (
    "NET/Plugin: libnccl-net.so: libcxi.so.1: cannot open shared object file: No such file or directory",
    "Using network Socket",
)


def noted(
    tmp_path: Path, *words: str, **options: object
) -> tuple[Launched, list[NcclProof], list[Finding]]:
    proofs: list[NcclProof] = []
    findings: list[Finding] = []
    command = ("python3", "-c", SAYS, *words)
    prepared = prepare(str(hosts.image()), Choices(), Request(ranks=2, command=command))
    with (tmp_path / "output").open("w+b") as out:
        done = launch_proved(
            prepared, command, 2,
            LaunchOptions(stdout=out, stderr=out, nccl=PLANNED, on_nccl=proofs.append, on_finding=findings.append, **options),
        )  # fmt: skip
    assert done.result.code == 0, (tmp_path / "output").read_text()
    return done, proofs, findings


def test_launch_on_the_planned_network_is_proved(tmp_path: Path) -> None:
    done, proofs, findings = noted(tmp_path, "1", *GOOD)
    assert done.nccl and proofs == [done.nccl] and len(done.nccl.records) == 2
    assert "Libfabric (interface v8, provider cxi, devices: 1)" in done.nccl.line
    assert not [f for f in findings if f.check == "nccl-proof"]


def test_launch_over_tcp_is_ended_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        noted(tmp_path, "600", *MISSING)
    assert caught.value.code is ExitCode.PROOF_FAILED
    (found,) = caught.value.findings
    assert found.what == "Socket is in use, Libfabric was planned"
    assert "libcxi.so.1: cannot open" in found.why and found.remedy


def test_launch_that_ends_at_once_is_judged_too(tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        noted(tmp_path, "0", *MISSING)
    assert caught.value.code is ExitCode.PROOF_FAILED


def test_launch_without_nccl_is_reported_as_not_proved(tmp_path: Path) -> None:
    done, proofs, findings = noted(tmp_path, "0")
    assert done.nccl is None and proofs == []
    (found,) = [f for f in findings if f.check == "nccl-proof"]
    assert "no process wrote NCCL's log" in found.what


def test_own_debug_file_is_kept_and_read(tmp_path: Path) -> None:
    env = {"NCCL_DEBUG_FILE": "/tmp/nccl-own.%h.%p", "NCCL_DEBUG": "WARN"}
    try:
        with pytest.raises(FairleadError) as caught:
            noted(tmp_path, "600", *MISSING, env=env)
        assert "Socket is in use" in caught.value.findings[0].what
    finally:
        for path in Path("/tmp").glob("nccl-own.*"):  # Apptainer shows the host's
            path.unlink()


def test_users_debug_output_is_said_to_be_in_the_folder(tmp_path: Path) -> None:
    _, _, findings = noted(tmp_path, "1", *GOOD, env={"NCCL_DEBUG": "INFO"})
    assert any("NCCL's log goes to" in f.what for f in findings)


def test_run_proves_the_staged_plugin_by_log_and_inode(image: Path, tmp_path: Path) -> None:
    done = launched(image, "--nccl", str(host_plugin(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fairlead: NCCL proved on 2 processes, 1 node: " in done.stderr
    found = answer(done)["nccl_proof"]
    assert [record["network"] for record in found["records"]] == ["Libfabric"] * 2
    assert {record["interface"] for record in found["records"]} == {8}


def test_run_whose_plugin_fails_ends_with_122_and_the_logs_words(
    image: Path, tmp_path: Path
) -> None:
    folder = host_plugin(tmp_path, does=Does(fails=2))
    done = launched(image, "--nccl", str(folder), env={"NCCL_NET": "Libfabric"})
    assert done.returncode == 122, done.stdout + done.stderr
    text = done.stdout + done.stderr
    assert "nccl-proof" in text and "network Libfabric not found" in text


def test_run_on_one_node_may_do_without_the_plugin(image: Path, tmp_path: Path) -> None:
    folder = host_plugin(tmp_path, does=Does(fails=2))
    done = launched(image, "--nccl", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["network"] for record in answer(done)["nccl_proof"]["records"]] == ["Socket"] * 2
