"""What a launch's NCCL logs and mapped files come to, while it runs and at its end."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.nccl import RULES, gpu_ask, gpu_plan

from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead.base.nccl_log import Cause
from fairlead.base.nccl_verdict import Difference, Expected, Mapped, file_differences
from fairlead.proof import nccl
from fairlead.proof.nccl import NcclProof, NcclWatch, expected_of, finding, settings

PLUGIN = "/opt/fairlead/nccl/libnccl-net.so"
PLANNED = Expected(("Libfabric", "AWS Libfabric"), ("cxi",), PLUGIN, 0, 8, gdr=True)
COMPLETE = (
    "ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 busId 1000 commId 0x1 - Init COMPLETE"
)
GOOD = (
    "NCCL version 2.28.9+cuda12.8",
    f"Successfully loaded external network plugin {PLUGIN}",
    "NET/Plugin: Loaded net plugin Libfabric (v8)",
    "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",
    "Using network Libfabric",
    "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0/GDRDMA",
    COMPLETE,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 10
        return self.now


Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(rank: int, *texts: str, folder: Path = tmp_path) -> None:
        lines = [f"n{rank}:{rank + 7}:9 [0] NCCL INFO {text.format(rank=rank)}\n" for text in texts]
        with (folder / f"nccl.n{rank}.{rank + 7}").open("a") as stream:
            stream.writelines(lines)

    return put


def watched(folder: Path, expected: Expected = PLANNED, own: str = "") -> NcclWatch:
    return NcclWatch(expected, 2, folder, own, clock=Clock())


def refused(watch: NcclWatch) -> tuple[Finding, ...]:
    with pytest.raises(FairleadError) as caught:
        watch.look()
    assert caught.value.code is ExitCode.PROOF_FAILED
    return caught.value.findings


def test_watch_of_planned_ranks_proves_once_when_all_stand(tmp_path: Path, write: Write) -> None:
    proofs: list[NcclProof] = []
    now = [100.0]

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    watch = NcclWatch(PLANNED, 2, tmp_path, on_proof=proofs.append, clock=clock)
    watch.look()
    write(0, *GOOD)
    write(1, *GOOD[:-1])
    watch.look()
    assert proofs == [] and watch.proof is None
    write(1, GOOD[-1])
    watch.look()
    watch.look()
    assert len(proofs) == 1
    assert proofs[0].line.startswith("NCCL proved on 2 processes, 2 nodes: NCCL 2.28.9+cuda12.8; ")
    assert "provider cxi, devices: 4" in proofs[0].line
    assert proofs[0].line.endswith("GPUDirect RDMA on 1 of 1 connections")
    watch.last_look(lambda finding: pytest.fail(finding.what))


@pytest.mark.parametrize(
    ("texts", "check", "words"),
    [
        (["NET/Plugin: libnccl-net.so: libfabric.so.1: cannot open shared object file: No such file or directory",
          "NET/IB : No device found.", "Using network Socket"], "Socket is in use", "lacks a library"),
        (["Using network Socket"], "Socket is in use", "does not say why"),
        (["Using network IB"], "IB is in use", "does not say why"),
        ([*GOOD[:3], "NET/OFI Selected provider is tcp;ofi_rxm (found 1 nics)", *GOOD[4:]], "libfabric uses tcp;ofi_rxm", "does not accept"),
        ([GOOD[0], "Successfully loaded external network plugin /usr/lib/libnccl-net.so", *GOOD[2:]], "/usr/lib/libnccl-net.so was loaded", "mounted over"),
        ([*GOOD[:2], "NET/Plugin: Loaded net plugin Libfabric (v7)", *GOOD[3:]], "interface v7", "another NCCL"),
        ([*GOOD[:5], "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0", COMPLETE], "1 of 1 connections", "otherwise"),
        ([*GOOD, "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0/GDRDMA"], "over Socket", "second communicator"),
    ],
)  # fmt: skip
def test_watch_of_anything_else_is_a_failed_proof_with_its_cause(
    texts: list[str], check: str, words: str, tmp_path: Path, write: Write
) -> None:
    write(1, *GOOD)
    write(0, *texts)
    found = refused(watched(tmp_path))
    assert check in found[0].what and words in found[0].why, found
    assert found[0].check == "nccl-proof" and found[0].host == "n0" and found[0].remedy


def test_watch_looks_at_edges_that_come_after_the_proof(tmp_path: Path, write: Write) -> None:
    watch = watched(tmp_path)
    write(0, *GOOD[:5], COMPLETE)
    write(1, *GOOD[:5], COMPLETE)
    watch.look()
    assert watch.proof
    write(0, "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0")
    assert "through the host's memory" in refused(watch)[0].what


@pytest.mark.parametrize(
    ("gdr", "nodes", "ends"), [(True, 2, True), (False, 2, False), (True, 1, False)]
)
def test_watch_of_a_device_without_gpudirect_ends_where_the_site_has_it(
    tmp_path: Path, write: Write, gdr: bool, nodes: int, ends: bool
) -> None:
    plan = gpu_plan(asked=gpu_ask(rules=replace(RULES, gdr=gdr), nodes=nodes))
    expected = expected_of(plan)
    assert expected and expected.nics_gdr is ends
    watch = watched(tmp_path, replace(expected, networks=("Libfabric",), file="", library=""))
    write(0, *GOOD[:-2], "NET/Libfabric : GPU Direct RDMA Disabled for HCA 0 'cxi0'")
    if ends:
        [found] = refused(watch)
        assert "cxi0" in found.what and "nvidia-peermem" in found.remedy
    else:
        watch.look()


def test_watch_of_a_name_that_no_plugin_has_fails_without_a_network(tmp_path: Path) -> None:
    (tmp_path / "nccl.n0.7").write_text(
        "n0:7:9 [0] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric (v8)\n"
        "\nn0:7:9 [0] net.cc:700 NCCL WARN Error: network OFI not found.\n"
    )
    (found,) = refused(watched(tmp_path))
    assert "no network is in use" in found.what and "network OFI not found" in found.why


@pytest.mark.parametrize(
    ("own", "texts", "words"),
    [
        ("", (), "no process wrote NCCL's log"),
        ("/elsewhere/log.%p", (), "log could not be read"),
        ("", GOOD[:1], "on 1 processes that have loaded it"),
    ],
)
def test_watch_that_knows_nothing_says_so(
    own: str, texts: tuple[str, ...], words: str, tmp_path: Path, write: Write
) -> None:
    found: list[Finding] = []
    if texts:
        write(0, *texts)
    watched(tmp_path, own=own).last_look(found.append)
    assert [words in one.what for one in found] == [True]


def test_watch_of_fewer_processes_than_ranks_says_so(tmp_path: Path, write: Write) -> None:
    write(0, *GOOD)
    watch = watched(tmp_path)
    found: list[Finding] = []
    watch.look()
    watch.last_look(found.append)
    assert watch.proof and [one.what for one in found] == [
        "NCCL's network is proved of 1 processes, of 2 ranks"
    ]


MAPPING = """
import mmap, sys
files = [open(path, "rb") for path in sys.argv[1:]]
kept = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files]
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mapping() -> Iterator[Callable[..., None]]:
    """Starts a process that has files mapped, until the test ends."""
    children: list[subprocess.Popen[str]] = []

    def start(*paths: Path) -> None:
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes(mmap.PAGESIZE))
        words = [sys.executable, "-c", MAPPING, *map(str, paths)]
        children.append(
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert children[-1].stdout.readline() == "mapped\n"

    yield start
    for child in children:
        child.communicate()


@pytest.mark.parametrize("case", ["planned", "other inode", "two libraries", "other library"])
def test_files_that_a_rank_has_mapped_are_compared(
    case: str, tmp_path: Path, write: Write, mapping: Callable[..., None]
) -> None:
    run, library = tmp_path / "run", tmp_path / "libnccl.so.2"
    run.mkdir()
    plugin, other = tmp_path / "libnccl-net.so.0.0.0", tmp_path / "more" / "libnccl.so.2"
    mapping(library, plugin, *([other] if case == "two libraries" else []))
    inode = plugin.stat().st_ino + (case == "other inode")
    named = str(other if case == "other library" else library)
    watch = watched(run, Expected(("Libfabric",), file=PLUGIN, inode=inode, library=named))
    write(0, *GOOD, folder=run)
    if case == "planned":
        watch.look()
        watch.look()  # the other rank is late
        assert watch.proof
    else:
        words = {"two libraries": "two NCCLs are mapped", "other library": str(library)}
        assert words.get(case, f"{plugin} is mapped") in refused(watch)[0].what


def test_own_debug_file_is_read_where_the_ranks_see_it(
    tmp_path: Path, write: Write, mapping: Callable[..., None]
) -> None:
    mapping(tmp_path / "any")  # a process of the run, whose root is looked through
    own = tmp_path / "own"
    own.mkdir()
    write(0, "Using network Socket", folder=own)
    found = refused(watched(tmp_path / "run", own=f"{own}/nccl.%h.%p"))
    assert "Socket is in use" in found[0].what


@pytest.mark.parametrize(
    ("given", "subsystems"),
    [
        ({}, "INIT,NET,ENV"),
        ({"NCCL_DEBUG_SUBSYS": "coll,net"}, "INIT,NET,ENV,COLL"),
        ({"NCCL_DEBUG_SUBSYS": "ALL"}, "INIT,NET,ENV,ALL"),
        ({"NCCL_DEBUG_SUBSYS": "^NET,GRAPH"}, "^GRAPH"),
        ({"NCCL_DEBUG_SUBSYS": "^INIT"}, "ALL"),
    ],
)
def test_settings_keep_what_the_user_asks_for(given: dict[str, str], subsystems: str) -> None:
    assert settings(given)["NCCL_DEBUG_SUBSYS"] == subsystems
    assert settings({**given, "NCCL_DEBUG": "WARN"})["NCCL_DEBUG"] == "INFO"
    assert settings({**given, "NCCL_DEBUG": "trace"})["NCCL_DEBUG"] == "TRACE"
    assert settings(given)["NCCL_DEBUG_FILE"] == "/opt/fairlead/run/nccl.%h.%p"
    assert settings({**given, "NCCL_DEBUG_FILE": "/x.%p"})["NCCL_DEBUG_FILE"] == "/x.%p"


def test_every_difference_and_cause_has_a_message_with_a_remedy() -> None:
    for kind in nccl._DIFFERENCES:
        assert finding(Difference(kind, "text")).remedy
    for kind in nccl._REASONS:
        made = finding(Difference("network", "text", Cause(kind, "because")))
        assert made.remedy and "because" in made.why


def test_process_without_nccl_has_no_difference() -> None:
    assert file_differences(Mapped(), PLANNED) == ()


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["NET/OFI No eligible providers were found", "Failed to initialize NET plugin Libfabric"], "found no network device"),
        (["Failed to initialize NET plugin Libfabric"], "Failed to initialize NET plugin Libfabric"),
    ],
)  # fmt: skip
def test_process_that_crashes_with_its_plugin_fails_the_proof_at_the_end(
    texts: list[str], why: str, tmp_path: Path, write: Write
) -> None:
    watch = watched(tmp_path)
    write(0, *GOOD[:3], *texts)
    watch.look()  # it may still take another network
    with pytest.raises(FairleadError) as caught:
        watch.last_look(lambda finding: None)
    assert caught.value.code is ExitCode.PROOF_FAILED
    [found] = caught.value.findings
    assert found.what.startswith("no network is in use") and why in found.why


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["NCCL_NET_PLUGIN set by environment to /x/libnccl-net.so"], "NCCL opens the plugin /x/libnccl-net.so"),
        ([GOOD[0]], "before they had a communicator"),
        (GOOD[:5], "before they had a communicator"),
    ],
)  # fmt: skip
def test_process_that_ends_too_early_is_reported_with_what_it_wrote_last(
    texts: list[str], why: str, tmp_path: Path, write: Write
) -> None:
    findings: list[Finding] = []
    write(0, *texts)
    watched(tmp_path).last_look(findings.append)
    [found] = findings
    assert "of NCCL's network on 1 processes" in found.what and why in found.why


def test_ranks_that_share_a_gpu_are_reported_in_nccls_words(tmp_path: Path) -> None:
    findings: list[Finding] = []
    text = "n0:7:9 [0] NCCL INFO Using network Libfabric\n\nn0:7:9 [0] init.cc:904 NCCL WARN Duplicate GPU detected\n"
    (tmp_path / "nccl.n0.7").write_text(text)
    watched(tmp_path, Expected(("Libfabric",))).last_look(findings.append)
    assert [finding.why for finding in findings] == ["Duplicate GPU detected"]


def test_interface_that_is_not_there_ends_the_launch(tmp_path: Path) -> None:
    text = "n0:7:9 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found\n"
    (tmp_path / "nccl.n0.7").write_text(text)
    [found] = refused(watched(tmp_path))
    assert "NCCL_SOCKET_IFNAME" in found.why and found.remedy
