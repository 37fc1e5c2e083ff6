"""The verdict on what ranks saw, and the cause behind ranks that said nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.recorded import NO_FILES, OPENMPI, host, image, planned, proved

from fairlead.base.errors import Severity
from fairlead.proof.probe_job import diagnose
from fairlead.proof.verdict import Proof, judge, mpi_program
from fairlead.swap.model import Plan


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


def test_judge_alone_under_another_launcher_names_both() -> None:
    found = words(proved(planned(launcher=OPENMPI), size=1))
    assert "Open MPI 5.0.11" in found["world-size"] and "wire-up protocol" in found["world-size"]


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
