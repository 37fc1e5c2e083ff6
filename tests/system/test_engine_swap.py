"""The swap under Podman and Charliecloud as under Apptainer: the same MPI, proved, the same rank."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.shared import own
from tests.system import hosts
from tests.system.hosts import answer, fairlead, ranks_of
from tests.system.test_failures import AS_ROOT, BUSY, mounts, stopped, traces
from tests.system.test_remedies import REPORT as GLIBC_REPORT
from tests.system.test_remedies import on_sid
from tests.system.test_swap import REPORT

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead.launch import shm_cleanup, unpack

ENGINES = ("podman", "charliecloud")
PR_SET_CHILD_SUBREAPER = 36
MPIS = {
    "mpich": (hosts.mpich, "MPICH Version: 5.0.2", "mpich"),
    "intel": (hosts.intel, "Intel(R) MPI Library 2021.18.1", "mpich"),
    "openmpi": (hosts.openmpi, "Open MPI v5.0.11", "openmpi"),
}


def left_overs() -> set[str]:
    """What Podman leaves behind where nobody clears up: stores, mounts, control groups."""
    stores = own("/tmp", "fairlead-podman.*")
    groups = own("/sys/fs/cgroup", "*/fairlead-podman.*")
    return {*map(str, stores), *map(str, groups), *mounts()}


@pytest.fixture
def clean() -> Iterator[Callable[[], dict[str, str]]]:
    """Gives the variables of a run; afterwards no process has them and nothing else is left."""
    token = f"fairlead-test-{os.urandom(4).hex()}"
    before = left_overs()
    yield lambda: {"TOKEN": token, **AS_ROOT}
    # Only a killed fairlead is not there to wait for the guards.
    late = time.monotonic() + 60
    new = left_overs() - before  # other tests' among them, which go
    while (traces(token) or new & left_overs()) and time.monotonic() < late:
        time.sleep(0.1)
    assert traces(token) == []
    assert new & left_overs() == set()


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("engine", ENGINES)
def test_swap_python_is_proved_on_every_host(engine: str, mpi: str, clean) -> None:
    prefix, title, _ = MPIS[mpi]
    command = ("--mpi", prefix(), hosts.image(), "--", "python3", "-c", REPORT)
    done = fairlead("run", "-n", "2", "--json", "--engine", engine, *command, env=clean())
    assert done.returncode == 0, done.stdout + done.stderr
    said = answer(done)
    assert said["engine"]["kind"] == engine
    assert said["proof"]["holds"] and len(said["proof"]["ranks"]) == 2
    for rank in said["proof"]["ranks"]:
        assert rank["mpi_path"].startswith("/opt/fairlead/mpi/lib/libmpi.so")
        assert rank["mpi_inode"] == said["proof"]["planned_inode"] > 0
    seen = ranks_of(done.stderr)
    assert set(seen) == {0, 1}
    assert all(version.startswith(title) for version, _ in seen.values()), seen


@pytest.mark.parametrize("engine", ENGINES)
def test_swap_c_program_computes_the_bits_of_apptainer(engine: str, clean) -> None:
    image = hosts.image_with_programs()
    bits = {}
    for kind, mpi in (
        ("apptainer", "host"),
        (engine, "host"),
        (engine, hosts.intel()),
        (engine, "container"),
    ):
        words = (
            "run",
            "-n",
            "2",
            "-q",
            "--engine",
            kind,
            "--mpi",
            mpi,
            image,
            "--",
            "/opt/app/allreduce",
        )
        done = fairlead(*words, env=clean())
        assert done.returncode == 0, done.stderr
        seen = ranks_of(done.stdout)
        assert set(seen) == {0, 1}
        bits[kind, str(mpi)] = {b for _, b in seen.values()}
    assert len(set().union(*bits.values())) == 1, bits


WHERE = """
import json, os, sys
names = sys.argv[1:]
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "cwd": os.getcwd(), "home": os.path.expanduser("~"),
    "homes": sorted(os.listdir(os.path.expanduser("~"))), "here": sorted(os.listdir()),
    "path": os.environ["PATH"], "set": {n: os.environ.get(n) for n in names},
    "tmp": os.path.exists("/tmp/" + os.environ["TOKEN"]), "node": os.uname().nodename,
    "shm": os.stat("/dev/shm").st_dev, "net": os.readlink("/proc/self/ns/net"),
    "null": os.path.exists("/dev/null"), "stdin": sys.stdin.read(), "pid": os.path.exists(f"/proc/{os.environ['ME']}"),
}))
"""
STRANGE = "a b'c\"d $HOME `id` \\ \n é, e:f=g;"


def test_rank_finds_what_it_finds_under_apptainer(tmp_path: Path, clean) -> None:
    """Variables, folders, ids, names: what a user of one engine relies on, the others give."""
    variables = clean()
    Path("/tmp", variables["TOKEN"]).touch()
    output = {"STRANGE": STRANGE, "QUOTED": "'x'", "EMPTY": "", "ENVIRONMENT": "of --env"}
    words = [w for name, value in output.items() for w in ("--env", f"{name}={value}")]
    seen = {}
    try:
        for engine in ("apptainer", *ENGINES):
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "fairlead", "run", "-q", "--engine", engine, *words),
                    *(str(hosts.image()), "--", "python3", "-c", WHERE),
                    *(*output, "OUTER", "PYTHONNOUSERSITE", "TMPDIR", "XDG_RUNTIME_DIR", "LD_LIBRARY_PATH_OF_HOST"),
                ],
                cwd=tmp_path, capture_output=True, text=True, check=False, input="typed\n",
                env={
                    **os.environ, **variables, "OUTER": STRANGE, "ME": str(os.getpid()),
                    "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/none",
                },
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            seen[engine] = json.loads(done.stdout)
    finally:
        Path("/tmp", variables["TOKEN"]).unlink()
    assert seen["apptainer"]["set"]["STRANGE"] == seen["apptainer"]["set"]["OUTER"] == STRANGE
    assert seen["apptainer"]["cwd"] == str(tmp_path) and seen["apptainer"]["stdin"] == "typed\n"
    assert seen["apptainer"]["tmp"] and seen["apptainer"]["pid"]
    assert seen["podman"] == seen["apptainer"]
    assert seen["charliecloud"] == seen["apptainer"]


@pytest.mark.parametrize("engine", ENGINES)
def test_binds_of_folders_and_files_and_the_working_folder(
    engine: str, tmp_path: Path, clean
) -> None:
    """Also of one file over the image's own, and to a place that the image does not have."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").write_text("of the host\n")
    (tmp_path / "issue").write_text("bound\n")
    command = "pwd; cat inside /etc/issue; echo new >made; cat /new/place/inside"
    done = fairlead(
        "run", "-q", "--engine", engine, "--bind", f"{tmp_path}/folder:/new/place",
        "--bind", f"{tmp_path}/issue:/etc/issue:ro", "--workdir", "/new/place", hosts.image(),
        "--", "sh", "-c", command, env=clean(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "/new/place\nof the host\nbound\nof the host\n"
    assert (tmp_path / "folder" / "made").read_text() == "new\n"


@pytest.mark.parametrize("engine", ENGINES)
def test_exit_codes_are_the_ranks_own(engine: str, clean) -> None:
    program = (
        "from mpi4py import MPI; import sys, time; r = MPI.COMM_WORLD.rank\n"
        "MPI.Finalize(); time.sleep(0.8 * r); sys.exit((3, 5)[r])"
    )
    words = ("run", "-n", "2", "--json", "--engine", engine, hosts.image(), "--")
    done = fairlead(*words, "python3", "-c", program, env=clean())
    assert done.returncode == 3, done.stderr
    assert {r["rank"]: r["exit_code"] for r in answer(done)["ranks"]} == {"0": 3, "1": 5}
    done = fairlead(*words, "no-such-program", env=clean())
    assert done.returncode not in (0, 124), done.stdout


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("engine", ENGINES)
def test_line_of_a_dry_run_runs_when_pasted(engine: str, shell: str, clean) -> None:
    words = ("--env", f"STRANGE={STRANGE}", hosts.image(), "--", "python3", "-c")
    code = f"{REPORT}\nimport os; assert os.environ['STRANGE'] == {STRANGE!r}"
    done = fairlead("run", "-n", "2", "--dry-run", "--engine", engine, *words, code, env=clean())
    assert done.returncode == 0, done.stderr
    pasted = subprocess.run(
        [shell], input=done.stdout, capture_output=True, text=True, check=False,
        env={**os.environ, **clean()},
    )  # fmt: skip
    assert pasted.returncode == 0, pasted.stderr
    assert {v for v, _ in ranks_of(pasted.stdout).values()} == {"MPICH Version: 5.0.2"}


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_remedies_bind_file_by_file(engine: str, clean) -> None:
    """A host with a newer glibc, and a program that its DT_RPATH ties to the image's MPI."""
    words = ("run", "-n", "2", "--json", "--engine", engine)
    done = fairlead(
        *words, *on_sid(), hosts.image(), "--", "python3", "-c", GLIBC_REPORT, env=clean()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"]
    lines = [line for line in done.stderr.splitlines() if line.startswith("rank ")]
    assert len(lines) == 2
    for line in lines:
        own, child = line.split("|")[:2]
        assert own.split()[-1] == child.split()[-1] > "2.36", line
    done = fairlead(*words, hosts.image_with_rpath(), "--", "/opt/app/tied", env=clean())
    assert done.returncode == 0, done.stdout + done.stderr
    proof = answer(done)["proof"]
    assert {r["mpi_path"] for r in proof["ranks"]} == {"/opt/mpich/lib/libmpi.so.12"}
    assert {r["mpi_inode"] for r in proof["ranks"]} == {proof["planned_inode"]}


@pytest.mark.parametrize("engine", ENGINES)
def test_preflight_and_explain_say_what_the_engine_needs(engine: str) -> None:
    said = answer(fairlead("preflight", "--json", "--engine", engine, hosts.image()))
    assert said["refused"] is False and said["engine"]["kind"] == engine
    shown = fairlead("explain", "--engine", engine, hosts.image()).stdout
    for option, why in said["engine"]["reasons"]:
        assert option in shown and why in shown
    assert "unpacked/" in shown


# --- kills, hangs, Ctrl-C --------------------------------------------------------------------


@pytest.fixture(params=ENGINES)
def job(request, tmp_path: Path, clean) -> Iterator[subprocess.Popen[str]]:
    """A running job of two ranks that never ends by itself; their pids are in ``tmp_path``."""
    words = ("run", "-n", "2", "--json", "--engine", request.param, "--bind", str(tmp_path))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "fairlead", *words, str(hosts.image())),
            *("--", "python3", "-c", BUSY, str(tmp_path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **clean()},
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("pid.*"))) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "the ranks did not start"
            time.sleep(0.02)
        assert traces(clean()["TOKEN"])
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.mark.alone
def test_rank_killed_in_the_middle_ends_the_job(job, tmp_path: Path) -> None:
    memory = shm_cleanup.listing()
    os.kill(int((tmp_path / "pid.1").read_text()), signal.SIGKILL)
    out, err = job.communicate(timeout=60)
    said = json.loads(out)
    assert job.returncode == said["exit_code"] == 137, err
    assert said["error"]["what"] == "rank 1 failed first: killed by SIGKILL"
    assert not shm_cleanup.listing() - memory


def test_interrupted_run_leaves_nothing(job) -> None:
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    assert "Traceback" not in err


def test_killed_run_leaves_nothing(job) -> None:
    """`kill -9` of fairlead itself: nobody is left to clear up but each rank's own guard."""
    job.kill()
    job.communicate(timeout=60)


@pytest.fixture
def earlier_stores() -> set[Path]:
    return own("/tmp", "fairlead-podman.*")


@pytest.fixture
def nobody_reaps() -> Iterator[None]:
    """Orphans are handed to this process, which lets them be zombies, as many a container's first does."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


@pytest.mark.parametrize("job", ["podman"], indirect=True)
def test_store_whose_guard_was_killed_too_goes_with_the_next_run(
    earlier_stores, nobody_reaps, job, clean
) -> None:
    """A scheduler kills all of a job at once, guards first for all that one knows."""
    stores = own("/tmp", "fairlead-podman.*") - earlier_stores
    assert stores

    def pids() -> dict[int, str]:
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if clean()["TOKEN"].encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
            except OSError:
                continue
        return found

    ordered = sorted(pids().items(), key=lambda item: item[1] != "fairlead-guard")
    assert ordered[0][1] == "fairlead-guard"
    for pid, _ in ordered:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.communicate(timeout=60)
    assert stores & own("/tmp", "fairlead-podman.*")
    done = fairlead("run", "-q", "--engine", "podman", hosts.image(), "--", "true", env=clean())
    assert done.returncode == 0, done.stderr  # `clean` looks what is left


@pytest.mark.full
@pytest.mark.parametrize("engine", ["podman", "charliecloud"])
def test_rank_that_does_not_come_to_init_is_ended_and_named(engine: str, clean) -> None:
    code = "import os, time\nif os.environ['PMI_RANK'] == '1': time.sleep(1000)\nfrom mpi4py import MPI"
    done = fairlead(
        "run", "-n", "2", "--json", "--watchdog", "1", "--engine", engine, hosts.image(),
        "--", "python3", "-c", code, env=clean(), limit_s=60,
    )  # fmt: skip
    stopped(
        done, 124, "watchdog", "rank 1: runs and has not called MPI_Init", "rank 0: in MPI_Init"
    )


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_static_program_may_run_beyond_the_limit(engine: str, tmp_path: Path, clean) -> None:
    """It loads no witness, so only its place below the engine tells that the container came up."""
    source = tmp_path / "static.c"
    source.write_text("#include <unistd.h>\nint main(void) { sleep(5); return 0; }\n")
    subprocess.run(["cc", "-static", "-o", tmp_path / "static", source], check=True)
    done = fairlead(
        "run", "-n", "2", "--watchdog", "3", "--engine", engine, "--bind", tmp_path, hosts.image(),
        "--", tmp_path / "static", env=clean(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# --- images ----------------------------------------------------------------------------------


@pytest.mark.full
def test_folder_of_the_users_own_is_not_written_to(tmp_path: Path, clean) -> None:
    """Podman has a layer above it; Charliecloud needs a place for each bind, and is told the command."""
    tree = hosts.unpacked(tmp_path / "tree", {}, ("usr/share/*", "usr/bin/perl*"))
    before = sorted(p.relative_to(tree) for p in tree.rglob("*"))
    words = ("run", "-n", "2", "--json")
    command = (tree, "--", "python3", "-c", REPORT)
    done = fairlead(*words, "--engine", "podman", *command, env=clean())
    assert done.returncode == 0, done.stdout + done.stderr
    assert {v for v, _ in ranks_of(done.stderr).values()} == {"MPICH Version: 5.0.2"}
    done = fairlead(*words, "--engine", "charliecloud", *command, env=clean())
    assert done.returncode == 121, done.stdout
    (finding,) = [f for f in answer(done)["findings"] if f["severity"] == "error"]
    assert finding["check"] == "bind-place"
    assert sorted(p.relative_to(tree) for p in tree.rglob("*")) == before
    line = finding["remedy"].partition(";")[0]
    assert str(tree) in shlex.split(line)[2]
    subprocess.run(["sh", "-c", line], check=True)
    done = fairlead(*words, "--engine", "charliecloud", *command, env=clean())
    assert done.returncode == 0, done.stdout + done.stderr


def test_squashfs_of_a_sif_is_taken_out_once(tmp_path: Path) -> None:
    digest = answer(fairlead("inspect", "--json", hosts.image()))["image"]["digest"]
    bare = tmp_path / "unpacked" / f"{digest}.squashfs"
    unpack._take_out(hosts.image(), bare, tmp_path, Silent())
    made = bare.stat().st_ino
    unpack._take_out(hosts.image(), bare, tmp_path, Silent())
    assert bare.stat().st_ino == made
    assert hashlib.sha256(bare.read_bytes()).hexdigest() == digest


@pytest.mark.full
def test_layout_damaged_is_remade(tmp_path: Path) -> None:
    digest = answer(fairlead("inspect", "--json", hosts.image()))["image"]["digest"]
    root = tmp_path / "unpacked" / digest
    unpack._lay_out(hosts.image(), root, tmp_path, Silent())
    assert unpack.is_whole(root) and (root / "usr/bin/python3.11").is_file()
    assert sorted(p.name for p in root.parent.iterdir()) == [digest, f"{digest}.json"]
    (root / "usr").rename(root / "gone")
    assert not unpack.is_whole(root)
    unpack._lay_out(hosts.image(), root, tmp_path, Silent())
    assert unpack.is_whole(root)
    (aside,) = root.parent.glob(f".{digest}.*.old")  # a job may have it mounted still
    assert (aside / "gone").is_dir()
    with pytest.raises(FairleadError, match="not a valid image"):
        unpack._lay_out(tmp_path / "no-such", root.with_name("other"), tmp_path, Silent())


def test_layout_without_room_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "none", small], check=True)
    try:
        done = fairlead(
            "run", "--json", "--engine", "podman", hosts.image(), "--", "true",
            env={"XDG_CACHE_HOME": str(small)},
        )  # fmt: skip
        stopped(done, 123, "unpack", "MiB are needed", "XDG_CACHE_HOME")
        assert not list((small / "fairlead/unpacked").iterdir())
    finally:
        subprocess.run(["umount", small], check=True)
