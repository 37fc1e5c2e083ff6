"""What a plain swap would not do, done by a remedy of the plan, and proved by a real run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import answer, fairlead, ranks_of

from fairlead.base.paths import cache_dir
from fairlead.session.model import Choices, LaunchOptions
from fairlead.session.prepare import prepare
from fairlead.session.run import launch_proved
from fairlead.swap.model import Inputs, Request
from fairlead.swap.plan import plan

REPORT = """
import os, subprocess
from mpi4py import MPI
world = MPI.COMM_WORLD
child = subprocess.run(["getconf", "GNU_LIBC_VERSION"], capture_output=True, text=True)
own, version = os.confstr("CS_GNU_LIBC_VERSION"), MPI.Get_library_version().split()[2]
print(f"rank {world.rank} {own} | child {child.stdout.strip()} | {world.allreduce(1)} {version}\\n", end="", flush=True)
"""


def on_sid() -> tuple[str | Path, ...]:
    # The launcher of that MPI would need that glibc itself.
    return ("--mpi", hosts.sid() / "usr", "--launcher", hosts.mpich() / "bin/mpiexec")


def test_program_tied_by_rpath_gets_the_hosts_mpi_at_the_place_where_it_looks() -> None:
    image = hosts.image_with_rpath()
    done = fairlead("run", "-n", "2", "--json", image, "--", "/opt/app/tied")
    assert done.returncode == 0, done.stdout + done.stderr
    proof = answer(done)["proof"]
    assert {r["mpi_path"] for r in proof["ranks"]} == {"/opt/mpich/lib/libmpi.so.12"}
    assert {r["mpi_inode"] for r in proof["ranks"]} == {proof["planned_inode"]}
    assert {v for v, _ in ranks_of(done.stderr).values()} == {"MPICH Version: 5.0.2"}
    for host in (hosts.intel(), hosts.mpich()):
        done = fairlead("explain", "--mpi", host, "--app", "/opt/app/tied", image)
        assert "DT_RPATH" in done.stdout and "/opt/mpich/lib/libmpi.so.12" in done.stdout


def test_program_tied_by_rpath_computes_on_intel_what_it_computes_on_its_own() -> None:
    bits = set()
    for mpi in (hosts.intel(), "container"):
        done = fairlead(
            "run", "-n", "2", "--mpi", mpi, hosts.image_with_rpath(), "--", "/opt/app/tied"
        )
        assert done.returncode == 0, done.stderr
        bits |= {b for _, b in ranks_of(done.stdout).values()}
    assert len(bits) == 1


BY_PATH = """
import ctypes
mpi = ctypes.CDLL("/opt/mpich/lib/libmpi.so.12")
text, size, rank, length = ctypes.create_string_buffer(9000), ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Init(None, None)
mpi.MPI_Comm_size(0x44000000, ctypes.byref(size))
mpi.MPI_Comm_rank(0x44000000, ctypes.byref(rank))
mpi.MPI_Get_library_version(text, ctypes.byref(length))
name = text.value.decode().split(chr(10))[0]
print(f"rank {rank.value} of {size.value} on {name}: {'0' * 16} {'0' * 16} {'0' * 16} {'0' * 16}")
mpi.MPI_Finalize()
"""


@pytest.fixture(scope="module")
def past_the_search_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hosts.image_past_the_search_path(tmp_path_factory.mktemp("programs"))


@pytest.mark.parametrize(
    "command",
    [("/opt/app/viewed",), ("/opt/app/setgid",), ("/opt/app/wrapped",), ("python3", "-c", BY_PATH)],
    ids=["rpath-through-symlink", "setgid", "script", "absolute-path"],
)
@pytest.mark.parametrize("mpi", ["mpich-5.0.2", pytest.param("intel", marks=pytest.mark.full)])
def test_program_that_the_search_path_does_not_reach_runs_on_the_hosts_mpi(
    past_the_search_path: Path, command: tuple[str, ...], mpi: str
) -> None:
    host = hosts.intel() if mpi == "intel" else hosts.mpich()
    done = fairlead("run", "-n", "2", "--mpi", host, past_the_search_path, "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    versions = {version.split()[0] for version, _ in ranks_of(done.stdout).values()}
    assert versions == {"Intel(R)" if mpi == "intel" else "MPICH"}, done.stdout
    assert len(ranks_of(done.stdout)) == 2 and "3.4.3" not in done.stdout


def test_mpi_in_a_python_prefix_is_replaced_where_mpi4py_looks_first() -> None:
    library = hosts.old_mpich() / "lib/libmpi.so.12"
    image = hosts.squashfs_with("python-prefix", {"/opt/python/lib/libmpi.so.12": library})
    done = fairlead("run", "-n", "2", "--json", image, "--", "python3", "-c", REPORT)
    assert done.returncode == 0, done.stdout + done.stderr
    proof = answer(done)["proof"]
    assert {r["mpi_inode"] for r in proof["ranks"]} == {proof["planned_inode"]}
    assert done.stderr.count("2 5.0.2") == 2


def test_host_with_a_newer_glibc_brings_it_file_by_file() -> None:
    done = fairlead("preflight", "--json", *on_sid(), hosts.image(), "--app", "python3")
    said = answer(done)
    assert done.returncode == 0, said["findings"]
    (output,) = [f for f in said["findings"] if f["check"] == "glibc"]
    assert output["severity"] == "ok" and "file by file" in output["what"], output

    done = fairlead(
        "run", "-n", "2", "--json", *on_sid(), hosts.image(), "--", "python3", "-c", REPORT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"]
    lines = [line for line in done.stderr.splitlines() if line.startswith("rank ")]
    assert len(lines) == 2
    for line in lines:  # the program, and what it starts
        own, child = line.split("|")[:2]
        assert own.split()[-1] == child.split()[-1] > "2.36", line


LOADED = """
import ctypes, os
from mpi4py import MPI
for name in ("libz.so.1", "libudev.so.1", "libnuma.so.1"):  # as a program of the image would
    try:
        ctypes.CDLL(name)
    except OSError:
        print("refused", name)
paths = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line and "/" in line}
print(" ".join(["rank", str(MPI.COMM_WORLD.rank), *sorted(paths)]) + "\\n", end="", flush=True)
"""


def test_libraries_behind_the_hosts_mpi_are_not_given_to_the_images_programs() -> None:
    """They are found by those that need them, and by no search path of the container."""
    command = ("--", "python3", "-c", LOADED)
    done = fairlead("run", "-n", "2", *on_sid(), hosts.image(), *command)
    assert done.returncode == 0, done.stderr
    (first, second) = [line.split() for line in done.stdout.splitlines() if "rank" in line]
    for paths in (first, second):
        behind = {Path(p).name for p in paths if p.startswith("/opt/fairlead/mpi/dep/")}
        assert {"libucp.so.0", "libhwloc.so.15"} <= behind, behind
        # Needed by both: each has its own, unless the MPI had brought it before.
        (zlib,) = [p for p in paths if "/libz.so" in p]
        assert zlib.startswith("/usr/lib/"), zlib
    # In the host's closure and not in the image: nobody but the MPI finds it.
    assert "refused libnuma.so.1" in done.stdout
    said = answer(fairlead("explain", "--json", *on_sid(), hosts.image()))
    assert any(line["kind"] == "isolate" for line in said["lines"])


def test_host_with_a_newer_glibc_runs_c_programs_of_the_image() -> None:
    image = hosts.image_with_programs()
    done = fairlead("run", "-n", "2", "--json", *on_sid(), image, "--", "/opt/app/allreduce")
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"]
    own = fairlead("run", "-n", "2", "--mpi", "container", image, "--", "/opt/app/allreduce")
    bits = {b for text in (done.stderr, own.stdout) for _, b in ranks_of(text).values()}
    assert len(bits) == 1


def test_engine_that_binds_no_files_starts_the_program_by_the_hosts_loader() -> None:
    command = ("python3", "-c", REPORT)
    choices = Choices(mpi=str(hosts.sid() / "usr"), launcher=str(hosts.mpich() / "bin/mpiexec"))
    prepared = prepare(str(hosts.image()), choices, Request(ranks=2, command=command))
    made = prepared.plan
    by_loader = plan(
        Inputs(
            made.image, made.facts, made.host, made.launcher, made.site,
            replace(made.engine, binds_files=False), made.request, cache_dir(),
            witness=made.witness,
        )
    )  # fmt: skip
    assert "LD_LIBRARY_PATH" not in by_loader.env, "children would be given the host's libraries"
    said = cache_dir() / "tests" / "by-loader"
    with said.open("w+b") as out:
        done = launch_proved(
            replace(prepared, plan=by_loader), command, 2, LaunchOptions(stdout=out, stderr=out)
        )
    text = said.read_text()
    assert done.result.code == 0, text
    assert done.proof and done.proof.holds
    for line in [line for line in text.splitlines() if line.startswith("rank ")]:
        own, child = line.split("|")[:2]
        assert own.split()[-1] > "2.36" and child.split()[-1] == "2.36", line
    assert text.count("rank ") == 2


def test_loader_without_a_remedy_is_still_refused() -> None:
    """Where the host's own C library is not in the prefix that was named, nothing can be done."""
    prefix = hosts.debian_mpich("trixie")
    env = {"LD_LIBRARY_PATH": str(prefix / "lib/x86_64-linux-gnu")}
    done = fairlead("preflight", "--json", "--mpi", prefix, hosts.image(), env=env)
    assert done.returncode == 121
    (output,) = [f for f in answer(done)["findings"] if f["check"] == "glibc"]
    assert "GLIBC_2.38" in output["why"] and output["remedy"]
