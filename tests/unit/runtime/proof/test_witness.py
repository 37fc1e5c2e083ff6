"""What the witness is passed, how its records are read, and when a start-up has hung."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recorded import HYDRA, OPENMPI, ROOT_ENGINE, SITE, image, planned

from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.elf.facts import AbiFamily, Elf, MpiLibrary
from fairlead.proof.preload import Expected, Startup, asked, read_records
from fairlead.proof.verdict import Proof
from fairlead.swap.model import Inputs, Plan, Request
from fairlead.swap.plan import plan

RECORD = """\
rank={rank}
size={size}
{launched}host=node{rank}
version=MPICH Version:      5.0.2
mpi=00:1b 77 {path}
ring=1
user=user:[1]
pid=pid:[2]
ipc=ipc:[3]
net=net:[4]
shm=0:{shm}
library_path=/opt/fairlead/mpi/lib
ucx=intra-node cfg#1 tag(sysv/memory cma/memory)
"""


def record(plan: Plan, rank: int, size: int = 2, **changes: object) -> bytes:
    values = {"path": plan.planned_file, "shm": 27, "launched": "", **changes}
    if values["launched"] != "":
        values["launched"] = f"launched={values['launched']}\n"
    return RECORD.format(rank=rank, size=size, **values).encode().ljust(2048, b"\0")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


Start = Callable[..., tuple[Startup, list[Proof], Clock]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def make(plan: Plan, limit_s: float = 30.0) -> tuple[Startup, list[Proof], Clock]:
        output: list[Proof] = []
        clock = Clock()
        return (
            Startup(Expected(plan, 2, 77, tmp_path), limit_s, output.append, clock),
            output,
            clock,
        )

    return make


def test_records_are_read_with_what_the_mpi_said(tmp_path: Path) -> None:
    plan = planned()
    path = tmp_path / "proof.0"
    path.write_bytes(record(plan, 0) + record(plan, 1))
    (tmp_path / "said.0").write_text("libfabric provider: tcp\n")
    first, second = read_records(path, tmp_path)
    assert (first.rank, first.size, first.host) == (0, 2, "node0")
    assert (first.mpi_path, first.mpi_inode, first.mpi_count) == (plan.planned_file, 77, 1)
    assert first.version == "MPICH Version: 5.0.2" and first.ring_ok
    assert (second.netmod, second.providers) == ("ucx", ("cma", "sysv"))
    assert (first.netmod, first.providers) == ("ofi", ("tcp",))
    assert second.namespaces["shm"] == "0:27" and second.namespaces["pid"] == "pid:[2]"


@pytest.mark.parametrize(
    ("device", "netmod", "providers"),
    [
        ("/dev/cxi0", "device", ("cxi",)),
        ("/dev/kgni0", "device", ("gni",)),
        ("/dev/hfi1_0", "device", ("psm2",)),
        ("/dev/infiniband/uverbs0", "", ()),  # opened also by who only looks
    ],
)
def test_mpi_that_reveals_nothing_is_known_by_the_device_it_has_open(
    device: str, netmod: str, providers: tuple[str, ...], tmp_path: Path
) -> None:
    text = RECORD.partition("ucx=")[0].format(rank=0, size=1, path="/x", shm=1, launched="")
    path = tmp_path / "proof.0"
    path.write_bytes(f"{text}device={device}\n".encode().ljust(2048, b"\0"))
    [rank] = read_records(path, tmp_path)
    assert rank.devices == (device,)
    assert (rank.netmod, rank.providers) == (netmod, providers)
    (tmp_path / "said.0").write_text("libfabric provider: tcp\n")
    [rank] = read_records(path, tmp_path)
    assert rank.providers == ("tcp",)  # its own words count more


def test_startup_reports_a_proof_that_holds_once(start: Start, tmp_path: Path) -> None:
    plan = planned()
    startup, output, _ = start(plan)
    startup.look()
    assert startup.proof is None
    (tmp_path / "proof.0").write_bytes(record(plan, 0) + record(plan, 1))
    startup.look()
    startup.look()
    startup.last_look()
    assert len(output) == 1 and output[0].holds and output[0] is startup.proof


def test_startup_of_another_file_ends_the_launch(start: Start, tmp_path: Path) -> None:
    plan = planned()
    startup, output, _ = start(plan)
    other = record(plan, 1, path="/srv/mpich/lib/libmpi.so.12")
    (tmp_path / "proof.0").write_bytes(record(plan, 0) + other)
    with pytest.raises(FairleadError) as caught:
        startup.look()
    assert caught.value.code is ExitCode.PROOF_FAILED
    assert [proof.holds for proof in output] == [False], "the table is shown"
    assert [f.check for f in caught.value.findings] == ["planned-file"]


def test_startup_of_ranks_alone_waits_for_all_of_them(start: Start, tmp_path: Path) -> None:
    plan = planned()
    startup, _, _ = start(plan)
    (tmp_path / "proof.31").write_bytes(record(plan, 0, size=1))
    startup.look()
    assert startup.proof is None
    (tmp_path / "proof.32").write_bytes(record(plan, 0, size=1))
    with pytest.raises(FairleadError) as caught:
        startup.look()
    assert "every rank is alone" in caught.value.findings[0].what


@pytest.mark.parametrize("signed", [False, True])
def test_startup_on_hosts_that_could_not_look_at_the_image_is_doubted_or_refused(
    signed: bool, tmp_path: Path
) -> None:
    plan, output = planned(), []
    expected = Expected(plan, 2, 77, tmp_path, signed=signed)
    (tmp_path / "proof.0").write_bytes(record(plan, 0) + record(plan, 1))
    startup = Startup(expected, 30, output.append, Clock())
    if signed:
        with pytest.raises(FairleadError, match="no node could verify the image"):
            startup.look()
    else:
        startup.look()
    [proof] = output
    [found] = [f for f in proof.findings if f.check == "image-on-nodes"]
    assert found.where == f"node0, node1: {plan.image}" and proof.holds is not signed


def test_startup_on_a_host_without_an_answer_about_the_image_is_refused(
    start: Start, tmp_path: Path
) -> None:
    plan = planned()
    startup, output, _ = start(plan)
    (tmp_path / "node.sh").touch()
    (tmp_path / "node.node0.0-1").write_text("ok 5000\n")
    (tmp_path / "proof.0").write_bytes(record(plan, 0) + record(plan, 1))
    with pytest.raises(FairleadError, match="a host that has not verified the image"):
        startup.look()
    assert not output[0].holds
    (tmp_path / "node.node1.0-1").write_text("ok 5000\n")
    startup, output, _ = start(plan)
    startup.look()
    assert output[0].holds and not [f for f in output[0].findings if f.check == "image-on-nodes"]


def test_later_program_of_one_rank_is_none_of_the_launchs_world(
    start: Start, tmp_path: Path
) -> None:
    """However late this process looks: on a busy machine both have reported by then."""
    plan = planned()
    startup, output, _ = start(plan)
    (tmp_path / "proof.7.0").write_bytes(record(plan, 0, launched=0) + record(plan, 1, launched=1))
    (tmp_path / "proof.9.0").write_bytes(record(plan, 0, size=1, launched=0))
    (tmp_path / "proof.9.1").write_bytes(record(plan, 0, size=1, launched=1))
    (tmp_path / "proof.11.1").write_bytes(record(plan, 0, launched=0) + record(plan, 1, launched=1))
    startup.look()
    assert output[0].holds and [r.size for r in output[0].ranks] == [2, 2]


@pytest.mark.parametrize(
    ("worlds", "words"),
    [
        ([[0], [1]], "alone"),
        ([["0 of 2"], ["1 of 2"]], ""),  # of an unknown MPI each rank reports by itself
        ([[0]], ""),
        ([[0, 0], [1, 1]], "a job of 2 ranks of its own"),
        ([[0, 1]], ""),
    ],
)
def test_worlds_of_each_ranks_own_besides_the_proved_one_are_reported(
    worlds: list[list[int | str]], words: str, start: Start, tmp_path: Path
) -> None:
    plan = planned()
    startup, _, _ = start(plan)
    (tmp_path / "proof.7.0").write_bytes(record(plan, 0, launched=0) + record(plan, 1, launched=1))
    startup.look()
    for number, launched in enumerate(worlds, 8):
        size = 2 if isinstance(launched[0], str) else len(launched)
        parts = [
            record(plan, i, size=size, launched=str(outer)[0]) for i, outer in enumerate(launched)
        ]
        (tmp_path / f"proof.{number}.0").write_bytes(b"".join(parts))
    findings = list(startup.besides())
    assert [f.check for f in findings] == ["world-size"] * bool(words)
    assert all(words in f.what and f.severity is Severity.WARNING for f in findings)


def test_later_program_on_another_mpi_is_refused(start: Start, tmp_path: Path) -> None:
    plan = planned()
    startup, output, _ = start(plan)
    (tmp_path / "proof.7.0").write_bytes(record(plan, 0, launched=0) + record(plan, 1, launched=1))
    other = record(plan, 0, size=1, launched=1, path="/srv/mpich/lib/libmpi.so.12")
    (tmp_path / "proof.9.1").write_bytes(other)
    with pytest.raises(FairleadError, match="another MPI than planned"):
        startup.look()
    assert not output[0].holds


@pytest.mark.parametrize("inner", [2, 3])
@pytest.mark.parametrize("seen", [1, 2])
def test_ranks_that_start_a_launcher_each_are_no_world(
    inner: int, seen: int, start: Start, tmp_path: Path
) -> None:
    """``fairlead run -n 2 … mpiexec -n 2 PROGRAM``: each world by itself looks like the right one."""
    plan = planned()
    startup, output, clock = start(plan)
    for outer in range(seen):
        world = [record(plan, rank, size=inner, launched=outer) for rank in range(inner)]
        (tmp_path / f"proof.7.{outer}").write_bytes(b"".join(world))
    startup.look()
    clock.now += 1.5
    with pytest.raises(FairleadError) as caught:
        startup.look()
    (finding,) = caught.value.findings
    assert finding.check == "world-size" and "a launcher runs within" in finding.what
    assert not output[0].holds


def test_startup_of_one_rank_alone_is_judged_after_a_while(start: Start, tmp_path: Path) -> None:
    plan = planned()
    startup, _, clock = start(plan)
    (tmp_path / "proof.31").write_bytes(record(plan, 0, size=1))
    startup.look()
    clock.now += 1.5
    with pytest.raises(FairleadError):
        startup.look()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), ("rank 0, 1: never started by the launcher",)),
        (("exit.0", "alive.0"), ("rank 1: never started", "rank 0: runs and has not")),
        (("exit.0", "exit.1", "alive.0"), ("rank 1: started, but the container did not",)),
        (("exit.0", "exit.1", "alive.0", "alive.1", "started.1"), ("rank 0: runs and", "rank 1: in")),
    ],
)  # fmt: skip
def test_startup_without_progress_names_who_is_missing(
    files: tuple[str, ...], words: tuple[str, ...], start: Start, tmp_path: Path
) -> None:
    startup, _, clock = start(planned(), 5.0)
    startup.look()
    clock.now += 4
    for name in files:
        (tmp_path / name).write_text("node7 123\n" if "exit" not in name else "")
    startup.look()  # something has happened, or not: the time counts from there
    clock.now += 0.5 if not files else 4.5
    startup.look()
    clock.now += (
        60 if "started.1" in files else 1
    )  # who works before MPI_Init has ten times as long
    with pytest.raises(FairleadError) as caught:
        startup.look()
    (finding,) = caught.value.findings
    assert caught.value.code is ExitCode.WATCHDOG and finding.check == "watchdog"
    for word in words:
        assert word in finding.why


def test_startup_without_progress_names_who_has_ended_and_the_last_words(
    start: Start, tmp_path: Path
) -> None:
    startup, _, clock = start(planned(), 5.0)
    for name, text in (
        ("exit.0", ""), ("exit.1", "4\n"), ("alive.0", "node7 12\n"), ("alive.1", "node8 12\n"),
        ("started.0", "node7 12\n"), ("said.0", "no such device\n======\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    startup.look()
    clock.now += 6
    with pytest.raises(FairleadError) as caught:
        startup.look()
    assert caught.value.findings[0].why.splitlines() == [
        "rank 1: exit code 4 before MPI_Init (on node8)",
        "rank 0: in MPI_Init (on node7)",
        "last words: no such device",
    ]


def test_startup_that_hangs_after_a_change_of_user_names_it_for_open_mpi(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "others").mkdir()
    for name in (
        "exit.0",
        "exit.1",
        "alive.0",
        "alive.1",
        "started.0",
        "started.1",
        "others/started.1",
    ):
        (tmp_path / name).write_text("node 1\n" if "exit" not in name else "")
    for launcher, words in (
        (OPENMPI, "ranks have changed their user"),
        (HYDRA, "1 called MPI_Init"),
    ):
        startup, _, clock = start(planned(launcher=launcher), 5.0)
        startup.look()
        clock.now += 600
        with pytest.raises(FairleadError) as caught:
            startup.look()
        found = caught.value.findings[0]
        assert (words in found.what) is (launcher is OPENMPI)


def test_startup_of_programs_that_work_before_init_may_take_long(
    start: Start, tmp_path: Path
) -> None:
    startup, _, clock = start(planned(), 5.0)
    for name in ("exit.0", "exit.1", "alive.0", "alive.1"):
        (tmp_path / name).write_text("node 1\n")
    for _ in range(100):
        startup.look()
        clock.now += 60


def test_asked_reports_ranks_inode_folder_and_file(tmp_path: Path) -> None:
    plan = planned()
    output, binds = asked(plan, 4, 77, tmp_path)
    assert output["FAIRLEAD_PROOF"] == f"4|77|/opt/fairlead/run|{plan.planned_file}"
    assert [(b.source, b.target) for b in binds] == [(str(tmp_path), "/opt/fairlead/run")]
    assert output["UCX_LOG_FILE"] == "/opt/fairlead/run/ucx.%h.%p"
    (tmp_path / "others").mkdir()  # for ranks that are another user
    output, _ = asked(plan, 4, 77, tmp_path)
    assert output["UCX_LOG_FILE"] == "/opt/fairlead/run/others/ucx.%h.%p"
    output, binds = asked(plan, 4, 77)
    assert output == {"FAIRLEAD_PROOF": f"4|77||{plan.planned_file}"} and not binds


def unknown(tmp_path: Path, opens: bool = False) -> Plan:
    """Of an image's own MPI, whose family nobody knows."""
    elf = Elf("/opt/tiny/lib/libtiny.so.1", "x64", "libtiny.so.1", opens=opens)
    library = MpiLibrary(elf, AbiFamily.UNKNOWN, "unknown", "", "2.2", pmi="pmi")
    app = Elf("/opt/tiny/bin/app", "x64", needed=("libtiny.so.1",), interpreter="/lib/ld.so")
    facts = replace(
        image(), mpis=(library,), consumers=(app,), leads={app.path: {"libtiny.so.1": elf.path}},
        programs={app.path: ""},
    )  # fmt: skip
    request = Request(mpi="container", ranks=2, apps=(app.path,))
    return plan(Inputs("/x.sif", facts, None, HYDRA, SITE, ROOT_ENGINE, request, tmp_path, witness="/w.so"))  # fmt: skip


def asked_record(made: Plan, rank: int, size: int = 2) -> bytes:
    text = record(made, rank, size).rstrip(b"\0").replace(b"ring=1\n", b"")
    return text.ljust(2048, b"\0")


def test_unknown_mpi_is_proved_by_each_ranks_own_report_without_a_message(
    start: Start, tmp_path: Path
) -> None:
    made = unknown(tmp_path)
    assert made.unknown_mpi and made.planned_file == "/opt/tiny/lib/libtiny.so.1"
    startup, proofs, clock = start(made)
    (tmp_path / "proof.0").write_bytes(asked_record(made, 0))
    startup.look()
    clock.now += 1000
    startup.look()
    assert not proofs, "the other rank has not asked yet"
    (tmp_path / "proof.1").write_bytes(asked_record(made, 1))
    startup.look()
    (proof,) = proofs
    assert proof.holds and [r.ring_ok for r in proof.ranks] == [None, None]
    assert "ring" in {f.check for f in proof.findings}


@pytest.mark.parametrize("opens", [True, False])
def test_mpi_behind_one_that_opens_libraries_is_none_too_many(
    opens: bool, start: Start, tmp_path: Path
) -> None:
    """As MPItrampoline, whose functions call those of the MPI that it opens."""
    made = unknown(tmp_path, opens)
    startup, proofs, _ = start(made)
    for rank in range(2):
        text = asked_record(made, rank).rstrip(b"\0") + b"mpi=00:1b 9 /usr/lib/libmpich.so.12\n"
        (tmp_path / f"proof.{rank}").write_bytes(text.ljust(2048, b"\0"))
    with nullcontext() if opens else pytest.raises(FairleadError, match="maps 2 MPI libraries"):
        startup.look()
    assert [proof.holds for proof in proofs] == [opens]
    settings, _ = asked(made, 2, 0)
    assert settings["FAIRLEAD_PROOF"].endswith("/libtiny.so.1|front") is opens


def test_ranks_of_an_unknown_mpi_get_time_to_ask_about_more_than_themselves(
    start: Start, tmp_path: Path
) -> None:
    made = unknown(tmp_path)
    startup, proofs, clock = start(made)
    for rank in (0, 1):
        (tmp_path / f"proof.{rank}").write_bytes(asked_record(made, 0, 1))
    startup.look()
    clock.now += 20
    startup.look()
    assert not proofs, "they may have asked about MPI_COMM_SELF"
    clock.now += 20
    with pytest.raises(FairleadError) as caught:
        startup.look()
    (finding,) = caught.value.findings
    assert caught.value.code is ExitCode.PROOF_FAILED and finding.check == "world-size"
    assert "libtiny.so.1" in finding.why and "--launcher image" in finding.remedy


def test_ranks_of_an_unknown_mpi_that_say_the_same_number_are_no_world(
    start: Start, tmp_path: Path
) -> None:
    made = unknown(tmp_path)
    startup, _, _ = start(made)
    for rank in (0, 1):
        (tmp_path / f"proof.{rank}").write_bytes(asked_record(made, 0))
    with pytest.raises(FairleadError, match=r"world|ranks"):
        startup.look()


@pytest.mark.parametrize("slots", [0, 1, 2])
def test_ranks_that_crowd_one_node_of_a_job_are_warned_of(slots: int, tmp_path: Path) -> None:
    made, output = planned(), list[Proof]()
    expected = Expected(made, 2, 77, tmp_path, nodes=("n1", "n2"), slots=slots)
    both = (record(made, 0) + record(made, 1)).replace(b"host=node1", b"host=node0")
    (tmp_path / "proof.7.0").write_bytes(both)
    Startup(expected, 30, output.append, Clock()).look()
    (proof,) = output
    found = [f.what for f in proof.findings if f.check == "placement"]
    assert proof.holds and len(found) == (slots == 1)
    assert all("2 ranks share one node, which has 1 slot in" in what for what in found)
