"""`python3 -m fairlead.prove --nccl`: what it makes of the logs of a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead import prove

PLUGIN = "/opt/nccl/libnccl-net.so"
GOOD = (
    "NCCL version 2.28.9+cuda12.8",
    f"Successfully loaded external network plugin {PLUGIN}",
    "NET/Plugin: Loaded net plugin Libfabric (v11)",
    "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",
    "Using network Libfabric",
    "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0/GDRDMA",
)
TCP = (
    "NET/Plugin: libnccl-net.so: libcxi.so.1: cannot open shared object file: No such file or directory",
    "NET/Socket : Using [0]hsn0:10.0.0.1<0>",
    "Using network Socket",
)


@pytest.fixture
def logs(tmp_path: Path):
    def put(*ranks: tuple[str, ...]) -> str:
        for rank, texts in enumerate(ranks):
            lines = [f"n{rank}:5:6 [0] NCCL INFO {text}\n" for text in texts]
            (tmp_path / f"nccl.n{rank}.5").write_text("".join(lines))
        return str(tmp_path)

    return put


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = prove.main(["--nccl", *words])
    return code, capsys.readouterr().out


def test_prove_nccl_as_expected_is_one_line(logs, capsys: pytest.CaptureFixture[str]) -> None:
    folder = logs(GOOD, GOOD)
    code, text = said(
        capsys, folder, "--networks", "AWS Libfabric,Libfabric", "--accepts", "cxi", "--expects", PLUGIN, "--interface",
        "11", "--gdr",
    )  # fmt: skip
    assert code == 0
    assert text == (
        f"fairlead: NCCL proved on 2 processes, 2 nodes: NCCL 2.28.9+cuda12.8; Libfabric ({PLUGIN}, interface v11, "
        "provider cxi, devices: 4); GPUDirect RDMA on 1 of 1 connections\n"
    )


def test_prove_nccl_without_expectation_observes(logs, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, logs(GOOD))
    assert code == 0 and text.startswith("fairlead: NCCL observed on 1 process, 1 node: ")
    code, text = said(capsys, logs(GOOD), "--json")
    answer = json.loads(text)
    assert answer["holds"] is None and answer["records"][0]["provider"] == "cxi"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--networks", "OFI"), "Libfabric is in use, OFI was planned"),
        (("--accepts", "efa"), "libfabric uses cxi, accepted: efa"),
        (("--expects", "/other/libnccl-net.so"), "/other/libnccl-net.so was planned"),
        (("--interface", "8"), "interface v11, v8 was planned"),
    ],
)
def test_prove_nccl_of_something_else_fails(
    options: tuple[str, ...], words: str, logs, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, logs(GOOD), *options)
    assert code == 122 and words in text and "not proved on 1 process" in text


def test_prove_nccl_over_tcp_fails_without_any_expectation(
    logs, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, logs(GOOD, TCP))
    assert code == 122
    assert "n1, process 5: Socket is in use" in text and "libcxi.so.1: cannot open" in text
    assert json.loads(said(capsys, logs(GOOD, TCP), "--json")[1])["holds"] is False
    assert said(capsys, logs(TCP, TCP), "--networks", "Socket")[0] == 0


@pytest.mark.parametrize("texts", [(), ("NCCL version 2.28.9+cuda12.8",)])
def test_prove_nccl_of_a_log_that_does_not_say_fails(
    texts: tuple[str, ...], logs, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, logs(texts))
    assert code == 122 and "does not say which network it uses" in text


def test_prove_nccl_of_what_the_log_leaves_out_is_not_proved(
    logs, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, logs(GOOD[2:]), "--expects", PLUGIN)
    assert code == 122 and "does not say where its plugin is" in text
    code, text = said(capsys, logs((*GOOD[:3], *GOOD[4:])), "--accepts", "cxi")
    assert code == 122 and "does not say which provider" in text


def test_prove_nccl_of_one_rank_that_is_silent_fails(
    logs, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, logs(GOOD, GOOD[:1]))
    assert code == 122 and "n1, process 5" in text


@pytest.mark.parametrize(
    "words", [(), ("x", "--interface", "new"), ("x", "--what"), ("/not/there",)]
)
def test_prove_nccl_with_bad_words_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert prove.main(["--nccl", *words]) == 2
