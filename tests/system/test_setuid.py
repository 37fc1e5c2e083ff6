"""An ordinary user with a real setuid Apptainer: no user namespaces, so ranks read each other's memory.

Debian's package is built without setuid. So this runs where a setuid Apptainer is on PATH or
FAIRLEAD_APPTAINER names one. Its settings are changed for one command each, in a mount namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.shared import own
from tests.system import hosts
from tests.system.hosts import answer
from tests.system.test_failures import loop_devices, mounts
from tests.system.test_user import PYTHON, processes_of

import fairlead
import fairlead_build
from fairlead.engines.apptainer import describe, find_apptainer

PROGRAM = find_apptainer()
pytestmark = [
    pytest.mark.skipif(
        PROGRAM is None or describe(PROGRAM, 1000, 0).userns_per_rank,
        reason="no setuid apptainer on PATH, and none in FAIRLEAD_APPTAINER",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make an account"),
]
MPIS = {
    "mpich": "MPICH Version: 5.0.2",
    "intel": "Intel(R) MPI Library 2021.18.1",
    "openmpi": "Open MPI v5.0.11",
    "container": "MPICH Version: 3.4.3",
}
HELLO = ("python3", "-m", "mpi4py.bench", "helloworld")
# A rank reads a word of its neighbour's memory, as MPIs do for large messages.
READ = """
import ctypes, os
from mpi4py import MPI
comm, libc = MPI.COMM_WORLD, ctypes.CDLL(None, use_errno=True)
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
word, other = ctypes.c_uint64(4242 + comm.rank), ctypes.c_uint64()
pid, address = comm.sendrecv((os.getpid(), ctypes.addressof(word)), 1 - comm.rank, source=1 - comm.rank)
here, there = Part(ctypes.addressof(other), 8), Part(address, 8)
size = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
comm.Barrier()
print(comm.rank, size, other.value, ctypes.get_errno())
"""


@dataclass(frozen=True)
class User:
    """Has what an administrator gives: Apptainer, MPIs, images, and nothing of our environment."""

    uid: int
    home: Path
    shared: Path

    def words(self, *words: str | Path, **variables: str) -> list[str]:
        code = self.shared / "code"
        environ = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": f"{code}:{code}/packages",
            "FAIRLEAD_MPI": str(self.shared / "mpich"),
            "FAIRLEAD_APPTAINER": str(PROGRAM),
            **variables,
        }
        return hosts.as_user(self.uid, self.home, environ, *words)

    def run(
        self, *words: str | Path, under: Sequence[str] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Any command.

        Args:
            under: root's words that make the conditions under which it runs.
        """
        return subprocess.run(
            [*under, *self.words(*words, **variables)],
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def fairlead(
        self, *words: str | Path, under: Sequence[str] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return self.run(PYTHON, "-m", "fairlead", *words, under=under, **variables)

    def proved(
        self, *words: str | Path, under: Sequence[str] = (), **variables: str
    ) -> dict[str, Any]:
        """The answer of a run on two ranks whose proof holds."""
        done = self.fairlead("run", "-n", "2", "--json", *words, under=under, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        said = answer(done)
        assert said["proof"]["holds"] and [r["rank"] for r in said["proof"]["ranks"]] == [0, 1]
        return said

    @property
    def image(self) -> Path:
        return self.shared / "image.squashfs"

    @property
    def sif(self) -> Path:
        """Has a record of fairlead's, so that nobody need look into it."""
        return self.shared / "image.sif"

    def mpi(self, name: str) -> str | Path:
        return name if name == "container" else self.shared / name


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    if not Path(PYTHON).exists():
        pytest.skip(f"no {PYTHON}, which another user could run")
    shared = Path(tempfile.mkdtemp(prefix="fairlead-setuid-"))
    shared.chmod(0o755)
    try:
        with hosts.account("setuid", shared) as (_, home):
            uid = home.stat().st_uid
            for make in (hosts.mpich, hosts.intel, hosts.openmpi):
                shutil.copytree(make(), shared / make.__name__, symlinks=True)
            shutil.copy(hosts.image_with_programs(), shared / "image.squashfs")
            shutil.copy(hosts.image("mpi-base"), shared / "image.sif")
            hosts.packages(shared / "code/packages")
            for package in (fairlead, fairlead_build):
                folder = Path(package.__file__ or "").parent
                shutil.copytree(folder, shared / "code" / folder.name)
            sites = shared / "code/fairlead/_data/sitecfg"
            shutil.copytree(hosts.ROOT / "sitecfg", sites, dirs_exist_ok=True)
            yield User(uid, home, shared)
            for pid in processes_of(uid):
                os.kill(pid, signal.SIGKILL)
    finally:
        shutil.rmtree(shared)


@pytest.fixture
def clean(user: User) -> Iterator[None]:
    """Nothing of the user's runs is left: no process, mount, loop device or shared memory."""
    before = own("/dev/shm", uid=user.uid)  # of an earlier account with its number
    yield
    until = time.monotonic() + 5
    while processes_of(user.uid) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_of(user.uid) == {}
    assert [it for it in (*mounts(), *loop_devices()) if str(user.shared) in it] == []
    assert own("/dev/shm", uid=user.uid) - before == set()


def in_namespace(script: str, *words: str | Path) -> list[str]:
    """Words that run what follows in a mount namespace, after root's ``script`` on ``words``."""
    count = len(words)
    return [
        *("unshare", "--mount", "sh", "-ec", f'{script}; shift {count}; exec "$@"', "sh"),
        *map(str, words),
    ]


def settings(folder: Path, *lines: str) -> list[str]:
    """Words that run what follows with other lines in Apptainer's configuration."""
    done = subprocess.run(
        [str(PROGRAM), "buildcfg", "APPTAINER_CONF_FILE"],
        capture_output=True,
        text=True,
        check=True,
    )
    conf = Path(done.stdout.strip())
    keys = {line.partition(" =")[0] for line in lines} - {"bind path"}
    kept = [k for k in conf.read_text().splitlines() if k.partition(" =")[0] not in keys]
    changed = folder / "apptainer.conf"
    changed.write_text("\n".join([*kept, *lines]) + "\n")
    changed.chmod(0o644)
    return in_namespace('mount --bind "$1" "$2"', changed, conf)


def refused(done: subprocess.CompletedProcess[str], code: int, check: str, *words: str) -> None:
    """Asserts that a ``--json`` call ended with ``code``, and that ``check`` says ``words``."""
    said = answer(done)
    assert done.returncode == code, done.stdout + done.stderr
    text = " ".join(v for f in said["findings"] if f["check"] == check for v in f.values())
    for word in words:
        assert word in text, said["findings"]


def apart(said: dict[str, Any]) -> bool:
    """Whether each rank had a user namespace of its own; that it was planned for is asserted."""
    of_ranks = {r["namespaces"]["user"] for r in said["proof"]["ranks"]}
    own = str(Path("/proc/self/ns/user").readlink())
    found = len(of_ranks) == 2
    assert found or of_ranks in ({own}, {own.strip("user:[]")}), (of_ranks, own)
    assert said["engine"]["userns_per_rank"] is found
    assert ("MPIR_CVAR_CH4_CMA_ENABLE" in said["env"]) is found
    return found


# --- the swap ----------------------------------------------------------------------------------


def test_setuid_apptainer_starts_as_root_and_makes_no_user_namespace(user: User) -> None:
    words = ("exec", user.sif, "readlink", "/proc/self/ns/user")
    done = user.run(str(PROGRAM), "--quiet", *words)
    assert done.stdout.strip() == str(Path("/proc/self/ns/user").readlink()), done.stderr
    done = user.run(str(PROGRAM), "--quiet", "exec", user.sif, "id", "-u")
    assert done.stdout == f"{user.uid}\n", done.stderr


@pytest.mark.parametrize("mpi", ["mpich", "intel", "container"])
def test_setuid_run_is_proved_and_large_messages_arrive(user: User, mpi: str, clean) -> None:
    said = user.proved("--mpi", user.mpi(mpi), user.image, "--", "/opt/app/exchange")
    assert not apart(said)
    assert all(r["version"].startswith(MPIS[mpi]) for r in said["proof"]["ranks"])
    assert len({r["namespaces"]["shm"] for r in said["proof"]["ranks"]}) == 1


def test_setuid_run_crosses_to_open_mpi(user: User, clean) -> None:
    said = user.proved("--mpi", user.mpi("openmpi"), user.sif, "--", *HELLO)
    assert all(r["version"].startswith(MPIS["openmpi"]) for r in said["proof"]["ranks"])
    assert not said["engine"]["userns_per_rank"]
    assert "OMPI_MCA_smsc" not in said["env"]


def test_setuid_ranks_read_each_others_memory(user: User, clean) -> None:
    done = user.fairlead("run", "-n", "2", "-v", user.sif, "--", "python3", "-c", READ)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 8 4243 0", "1 8 4242 0"]
    assert "proved on 2 ranks" in done.stderr and "cma" in done.stderr


@pytest.mark.parametrize("mpi", ["mpich", "intel", "container"])
def test_setuid_computes_the_bits_of_user_namespaces(user: User, mpi: str, clean) -> None:
    bits = set()
    for option in ((), ("--engine-arg=--userns",)):
        words = ("-q", "--mpi", user.mpi(mpi), *option, user.image, "--", "/opt/app/allreduce")
        done = user.fairlead("run", "-n", "2", *words)
        assert done.returncode == 0, done.stderr
        seen = hosts.ranks_of(done.stdout)
        assert set(seen) == {0, 1}
        bits |= {result for _, result in seen.values()}
    assert len(bits) == 1


def test_setuid_line_of_a_dry_run_can_be_pasted(user: User, clean) -> None:
    output = user.fairlead(
        "run", "-n", "2", "--dry-run", "--env", "GREETING=good, $HOME", user.image, "--",
        "sh", "-c", 'echo "$GREETING"; exec /opt/app/exchange',
    )  # fmt: skip
    assert output.returncode == 0, output.stderr
    assert "--userns" not in output.stdout and "CMA" not in output.stdout
    pasted = user.run("/bin/sh", "-c", output.stdout)
    assert pasted.returncode == 0, pasted.stdout + pasted.stderr
    assert pasted.stdout.count("good, $HOME\n") == pasted.stdout.count(": 0 wrong") == 2
    assert "fairlead: proved on 2 ranks" in pasted.stdout + pasted.stderr


# --- the end -----------------------------------------------------------------------------------


def test_setuid_aborted_job_leaves_nothing(user: User, clean) -> None:
    program = "from mpi4py import MPI; MPI.COMM_WORLD.rank and MPI.COMM_WORLD.Abort(9) or input()"
    done = user.fairlead("run", "-n", "2", user.sif, "--", "python3", "-c", program)
    assert done.returncode == 9, done.stderr


def test_setuid_rank_that_is_killed_leaves_nothing(user: User, clean) -> None:
    program = (
        "from mpi4py import MPI; import os; r = MPI.COMM_WORLD.rank; MPI.COMM_WORLD.Barrier();"
        "os.kill(os.getpid(), 9) if r else MPI.COMM_WORLD.Barrier()"
    )
    done = user.fairlead("run", "-n", "2", user.sif, "--", "python3", "-c", program)
    assert done.returncode not in (0, 121, 122, 123), done.stderr
    assert "killed by SIGKILL" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_setuid_interrupted_run_leaves_nothing(user: User, number: signal.Signals, clean) -> None:
    started = user.home / f"started.{number}"
    program = (
        "from mpi4py import MPI; import time; "
        f"MPI.COMM_WORLD.rank or open({str(started)!r}, 'w'); time.sleep(100)"
    )
    words = ("run", "-n", "2", user.sif, "--", "python3", "-c", program)
    with subprocess.Popen(
        user.words(PYTHON, "-m", "fairlead", *words),
        cwd=user.home,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        until = time.monotonic() + 60
        while not started.exists():
            assert job.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        job.send_signal(number)
        _, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    assert "interrupted" in err


# --- what is told of it ------------------------------------------------------------------------


def test_setuid_is_reported_by_doctor_and_detection(user: User) -> None:
    done = user.fairlead("doctor", "--json", "setuid", "engine", "cma", "sharing")
    found = json.loads(done.stdout)["findings"]
    assert done.returncode == 0, found
    whats = [f["what"] for f in found]
    assert "Apptainer is setuid: ranks share one user namespace" in whats
    assert "a process may read another's memory" in whats
    detected = answer(user.fairlead("site", "detect", "--json"))
    [engine] = [e for e in detected["facts"]["engines"] if e["kind"] == "apptainer"]
    assert engine["setuid"] is True and engine["settings"]["allow setuid"] == "yes"


def test_setuid_preflight_says_that_ranks_share_a_namespace(user: User) -> None:
    said = answer(user.fairlead("preflight", "-n", "2", "--json", user.sif))
    [found] = [f for f in said["findings"] if f["check"] == "namespaces"]
    assert found["severity"] == "ok" and "and the user namespace" in found["what"]


# --- what keeps it from being setuid -------------------------------------------------------------


def test_setuid_that_is_not_allowed_is_planned_with_namespaces(user: User, tmp_path: Path) -> None:
    under = settings(tmp_path, "allow setuid = no")
    assert apart(user.proved(user.image, "--", "/opt/app/exchange", under=under))
    said = user.fairlead("doctor", "setuid", under=under)
    assert "not used so: `allow setuid = no`" in said.stdout, said.stdout


def test_setuid_on_a_nosuid_file_system_is_planned_with_namespaces(user: User) -> None:
    assert PROGRAM
    prefix = PROGRAM.resolve().parent.parent
    script = 'mount --bind "$1" "$1"; mount -o remount,bind,nosuid "$1"'
    under = in_namespace(script, prefix)
    assert apart(user.proved(user.image, "--", "/opt/app/exchange", under=under))


def test_setuid_where_no_privileges_are_gained_is_planned_with_namespaces(user: User) -> None:
    under = ("setpriv", "--no-new-privs")
    assert apart(user.proved(user.image, "--", "/opt/app/exchange", under=under))


def test_setuid_that_a_variable_switches_off_is_planned_with_namespaces(user: User) -> None:
    words = (user.image, "--", "/opt/app/exchange")
    assert apart(user.proved(*words, APPTAINER_USERNS="1"))
    assert apart(user.proved("--engine-arg=--userns", *words))


def test_setuid_needs_no_user_namespaces_for_an_image_with_a_record(user: User) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of system calls are those of x86_64")
    assert user.run("unshare", "--user", "true", under=NO_USER_NAMESPACES).returncode != 0
    assert not apart(user.proved(user.sif, "--", *HELLO, under=NO_USER_NAMESPACES))
    shutil.rmtree(user.home / ".cache/fairlead/facts")  # what an earlier look has found
    words = ("run", "--json", user.image, "--", "true")
    done = user.fairlead(*words, under=NO_USER_NAMESPACES)
    refused(done, 1, "image-mount", "unshare", "user-namespaces")


def _filter() -> tuple[str, ...]:
    """Words that run what follows where unshare(2) and clone(2) make no user namespace."""

    def instruction(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    load, equal, holds, give = 0x20, 0x15, 0x45, 0x06
    program = (
        instruction(load, 0, 0, 0)  # seccomp_data.nr
        + instruction(equal, 1, 0, 272)  # unshare
        + instruction(equal, 0, 3, 56)  # clone
        + instruction(load, 0, 0, 16)  # the flags
        + instruction(holds, 0, 1, 0x10000000)  # CLONE_NEWUSER
        + instruction(give, 0, 0, 0x0005001C)  # SECCOMP_RET_ERRNO, ENOSPC
        + instruction(give, 0, 0, 0x7FFF0000)  # SECCOMP_RET_ALLOW
    )
    # Without PR_SET_NO_NEW_PRIVS, by which no program would be setuid: root may.
    script = f"""
import ctypes, os, sys
filter = ctypes.create_string_buffer(bytes.fromhex("{program.hex()}"))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
program = Program({len(program) // 8}, ctypes.addressof(filter))
if libc.prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit(f"no filter: errno {{ctypes.get_errno()}}")
os.execvp(sys.argv[1], sys.argv[1:])
"""
    return (sys.executable, "-c", script)


NO_USER_NAMESPACES = _filter()


# --- what an administrator sets ------------------------------------------------------------------


@pytest.mark.parametrize("mpi", ["host", "container"])
def test_setuid_that_may_bind_nothing_is_refused(user: User, mpi: str, tmp_path: Path) -> None:
    """Apptainer itself warns, and runs the image's MPI with exit code 0."""
    under = settings(tmp_path, "user bind control = no")
    words = ("run", "-n", "2", "--json", "--mpi", mpi, user.image, "--", "/opt/app/exchange")
    refused(user.fairlead(*words, under=under), 121, "engine-settings", "user bind control = no")


def test_setuid_with_a_dev_of_its_own_is_refused_for_several_ranks(
    user: User, tmp_path: Path
) -> None:
    under = settings(tmp_path, "mount dev = minimal")
    words = ("run", "-n", "2", "--json", user.sif, "--", *HELLO)
    refused(user.fairlead(*words, under=under), 121, "engine-settings", "/dev/shm")
    done = user.fairlead("run", "-q", "-n", "1", user.sif, "--", *HELLO, under=under)
    assert done.stdout.startswith("Hello, World! I am process 0 of 1"), done.stderr


def test_setuid_with_a_tmp_of_its_own_is_refused_where_ranks_meet_there(
    user: User, tmp_path: Path
) -> None:
    under = settings(tmp_path, "mount tmp = no")
    words = ("--mpi", user.mpi("openmpi"), user.sif, "--", *HELLO)
    refused(
        user.fairlead("run", "-n", "2", "--json", *words, under=under),
        121,
        "engine-settings",
        "--bind /tmp",
    )
    user.proved("--bind", "/tmp", *words, under=under)
    user.proved(user.image, "--", "/opt/app/exchange", under=under)


def test_setuid_without_a_home_has_the_working_folder(user: User, tmp_path: Path) -> None:
    under = settings(tmp_path, "mount home = no")
    (user.home / "script.py").write_text("from mpi4py import MPI; print('here')")
    (user.home / "script.py").chmod(0o644)
    done = user.fairlead("run", "-n", "2", user.sif, "--", "python3", "script.py", under=under)
    assert done.returncode == 0 and done.stdout == "here\n" * 2, done.stderr
    assert "proved on 2 ranks" in done.stderr


def test_setuid_with_a_bind_of_the_site_shows_it(user: User, tmp_path: Path) -> None:
    under = settings(tmp_path, f"bind path = {user.shared}/code:/opt/site")
    done = user.fairlead("run", "-n", "2", user.sif, "--", "ls", "/opt/site", under=under)
    assert done.returncode == 0 and done.stdout.count("packages\n") == 2, done.stderr


def test_setuid_with_a_bind_of_what_is_gone_says_so(user: User, tmp_path: Path) -> None:
    under = settings(tmp_path, "bind path = /opt/gone")
    done = user.fairlead("run", "-n", "2", "--json", user.sif, "--", "true", under=under)
    refused(done, 123, "engine", "mount source /opt/gone doesn't exist")
    found = user.fairlead("doctor", "engine-settings", under=under)
    assert found.returncode == 1 and "`bind path = /opt/gone`" in found.stdout + found.stderr


def test_setuid_with_owners_allowed_mounts_by_the_kernel(user: User, tmp_path: Path, clean) -> None:
    """Only images that an administrator trusts are given to the kernel's own squashfs."""
    program = "import time; from pathlib import Path; from mpi4py import MPI; time.sleep(1); " + (
        "print({p.read_text() for p in Path('/proc').glob('[0-9]*/comm')} & {'squashfuse_ll\\n'})"
    )
    words = ("run", "-n", "2", user.sif, "--", "python3", "-c", program)
    served = user.fairlead(*words)
    assert "squashfuse_ll" in served.stdout, served.stderr
    for line in ("limit container owners = root", "allow setuid-mount squashfs = yes"):
        under = settings(tmp_path, line)
        done = user.fairlead(*words, under=under)
        assert done.stdout == "set()\n" * 2, (done.stdout, done.stderr)
        assert "proved on 2 ranks" in done.stderr


def test_setuid_with_other_owners_allowed_is_reported(user: User, tmp_path: Path) -> None:
    under = settings(tmp_path, "limit container owners = daemon")
    done = user.fairlead("run", "-n", "2", "--json", user.sif, "--", "true", under=under)
    refused(done, 123, "engine", "image is not owned by required user(s)")
    found = user.fairlead("doctor", "engine-settings", under=under)
    assert "`limit container owners = daemon`: other images are refused" in found.stdout
