"""An ordinary user, whose Apptainer makes a user namespace for each rank."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.shared import own
from tests.system import hosts
from tests.system.hosts import answer

import fairlead
import fairlead_build
from fairlead.doctor.install.apptainer import install_apptainer
from fairlead_build.cache.store import Cache
from fairlead_build.squashfs.tree_stream import tree_digest
from fairlead_build.tools import tool_tree

# Of the version that the packages are for.
PYTHON = f"/usr/bin/python3.{sys.version_info.minor}"


@dataclass(frozen=True)
class User:
    """A real one, with all that an administrator gives: Apptainer, MPIs, an image, /dev/fuse."""

    uid: int
    home: Path
    shared: Path

    @property
    def image(self) -> Path:
        return self.shared / "image.squashfs"

    def fairlead(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """``fairlead WORDS``, by Debian's own Python: a private one may be closed to others."""
        return self.run(PYTHON, "-m", "fairlead", *words)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Any command, with an environment of the user's own."""
        return subprocess.run(
            self.argv(*words),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def argv(self, *words: str | Path) -> list[str]:
        code = self.shared / "code"
        variables = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": f"{code}:{code}/packages",
            "FAIRLEAD_MPI": str(self.shared / "mpich"),
            "FAIRLEAD_APPTAINER": f"{self.shared}/fairlead/apptainer/current/bin/apptainer",
        }
        return hosts.as_user(self.uid, self.home, variables, *words)


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    if not Path(PYTHON).exists():
        pytest.skip(f"no {PYTHON}, which another user could run")
    image, mpich, intel = hosts.image_with_programs(), hosts.mpich(), hosts.intel()
    shared = Path(tempfile.mkdtemp(prefix="fairlead-shared-"))
    shared.chmod(0o755)
    try:
        with hosts.account("run", shared) as (name, home):
            uid = home.stat().st_uid
            install_apptainer({**os.environ, "XDG_DATA_HOME": str(shared)})
            shutil.copytree(mpich, shared / "mpich", symlinks=True)
            shutil.copytree(intel, shared / "intel", symlinks=True)
            shutil.copy(image, shared / "image.squashfs")
            hosts.packages(shared / "code/packages")
            package = Path(fairlead.__file__).parent
            shutil.copytree(package, shared / "code/fairlead")
            build = Path(fairlead_build.__file__).parent
            shutil.copytree(build, shared / "code/fairlead_build")
            tools = home / ".cache/fairlead/tools"
            shutil.copytree(tool_tree.unpacked(Cache.default()).parent, tools, symlinks=True)
            subprocess.run(["chown", "-R", name, home], check=True)
            shutil.copytree(package.parents[1] / "sitecfg", shared / "code/fairlead/_data/sitecfg")
            yield User(uid, home, shared)
            for pid in processes_of(uid):
                os.kill(pid, signal.SIGKILL)
    finally:
        shutil.rmtree(shared)


def processes_of(uid: int) -> dict[int, str]:
    """What runs as this user: its name, by process id; zombies left out."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                name, _, state = (entry / "stat").read_text().rpartition(") ")
                if not state.startswith("Z"):
                    found[int(entry.name)] = name.partition("(")[2]
    return found


MPIS = {
    "host": "MPICH Version: 5.0.2",
    "intel": "Intel(R) MPI Library 2021.18.1",
    "container": "MPICH Version: 3.4.3",
}


def choice(user: User, mpi: str) -> Path | str:
    return user.shared / "intel" if mpi == "intel" else mpi


PER_RANK = "--container-per-rank"


def test_user_preflight_says_that_ranks_of_a_node_share_a_container(user: User) -> None:
    found = {}
    for options in ((), (PER_RANK,)):
        done = user.fairlead("preflight", "-n", "2", "--json", *options, user.image)
        said = answer(done)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said["engine"]["userns_per_rank"] is True
        assert said["engine"]["joins"] is not bool(options)
        found[options] = said, next(f for f in said["findings"] if f["check"] == "namespaces")
    said, finding = found[()]
    assert (
        finding["severity"] == "ok" and "the ranks of a node share one container" in finding["what"]
    )
    assert "MPIR_CVAR_CH4_CMA_ENABLE" not in said["env"]
    said, finding = found[(PER_RANK,)]
    assert finding["severity"] == "info"
    assert "each rank runs in a separate user namespace" in finding["what"]
    assert "cross-memory attach is off" in finding["why"]
    assert said["env"]["MPIR_CVAR_CH4_CMA_ENABLE"] == "0"


@pytest.mark.parametrize("options", [(), (PER_RANK,)], ids=["joined", "apart"])
@pytest.mark.parametrize("mpi", MPIS)
def test_user_run_is_proved_and_large_messages_arrive(
    user: User, mpi: str, options: tuple[str, ...]
) -> None:
    words = ("run", "-n", "2", "--json", "--mpi", choice(user, mpi), *options, user.image)
    done = user.fairlead(*words, "--", "/opt/app/exchange")
    said = answer(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count(": 0 wrong") == 2
    ranks = said["proof"]["ranks"]
    assert said["proof"]["holds"] and [r["rank"] for r in ranks] == [0, 1]
    assert all(r["version"].startswith(MPIS[mpi]) for r in ranks), ranks
    assert len({r["namespaces"]["user"] for r in ranks}) == (2 if options else 1)
    assert len({r["namespaces"]["shm"] for r in ranks}) == 1
    assert processes_of(user.uid) == {}


def test_user_has_the_same_rights_in_a_container_that_is_joined(user: User) -> None:
    # Without new privileges, the bounding set has no effect.
    fields = "^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs|Seccomp:|Groups|Uid|Umask)|open files"
    words = ("grep", "-hE", fields, "/proc/self/status", "/proc/self/limits")
    seen = []
    for options in ((), (PER_RANK,)):
        done = user.fairlead("run", "-q", "-n", "2", *options, user.image, "--", *words)
        assert done.returncode == 0, done.stderr
        seen.append(sorted(done.stdout.splitlines()))
    assert seen[0] == seen[1] and "NoNewPrivs:\t1" in seen[0]


@pytest.mark.parametrize("mpi", ["host", pytest.param("intel", marks=pytest.mark.full)])
@pytest.mark.parametrize("engine", ["podman", "charliecloud"])
def test_user_of_another_engine_is_proved_and_large_messages_arrive(
    user: User, engine: str, mpi: str
) -> None:
    """Rootless: whoever runs it is themselves inside, and nothing of it stays."""
    for pid in processes_of(user.uid):
        os.kill(pid, signal.SIGKILL)
    words = ("run", "-n", "2", "--json", "--engine", engine, "--mpi", choice(user, mpi), user.image)
    done = user.fairlead(*words, "--", "/opt/app/exchange")
    assert done.returncode == 0, done.stdout + done.stderr
    said = answer(done)
    assert done.stderr.count(": 0 wrong") == 2
    ranks = said["proof"]["ranks"]
    assert said["proof"]["holds"] and [r["rank"] for r in ranks] == [0, 1]
    assert all(r["version"].startswith(MPIS[mpi]) for r in ranks), ranks
    assert said["engine"]["userns_per_rank"] is True
    assert len({r["namespaces"]["user"] for r in ranks}) == (2 if engine == "podman" else 1)
    assert len({r["namespaces"]["shm"] for r in ranks}) == 1
    code = "import os; print(os.getuid(), os.getcwd()); open('made', 'w')"
    done = user.fairlead("run", "-q", *words[4:-1], user.image, "--", "python3", "-c", code)
    assert done.stdout == f"{user.uid} {user.home}\n", done.stderr
    assert (user.home / "made").stat().st_uid == user.uid
    (user.home / "made").unlink()
    assert processes_of(user.uid) == {}
    assert not own("/tmp", "fairlead-podman.*", user.uid)


@pytest.mark.parametrize("engine", ["podman", "charliecloud"])
def test_user_aborted_job_of_another_engine_leaves_nothing(user: User, engine: str) -> None:
    program = "from mpi4py import MPI; MPI.COMM_WORLD.rank and MPI.COMM_WORLD.Abort(9) or input()"
    words = ("run", "-n", "2", "--json", "--engine", engine, user.image)
    done = user.fairlead(*words, "--", "python3", "-c", program)
    assert done.returncode not in (0, 121, 122, 123), done.stdout
    assert processes_of(user.uid) == {}
    assert not own("/tmp", "fairlead-podman.*", user.uid)


def test_user_run_same_bits_on_every_mpi(user: User) -> None:
    bits = set()
    for mpi in MPIS:
        command = ("run", "-n", "2", "-q", "--mpi", choice(user, mpi), user.image)
        done = user.fairlead(*command, "--", "/opt/app/allreduce")
        assert done.returncode == 0, done.stderr
        seen = hosts.ranks_of(done.stdout)
        assert set(seen) == {0, 1}
        bits |= {result for _, result in seen.values()}
    assert len(bits) == 1


def test_user_run_on_a_host_with_a_newer_glibc_shows_files_over_the_images(user: User) -> None:
    """The remedy needs no privilege: bind mounts in each rank's own user namespace."""
    root = user.shared / "sid"
    shutil.copytree(hosts.sid(), root, symlinks=True)
    launcher = user.shared / "mpich/bin/mpiexec"
    words = ("run", "-n", "2", "--json", "--mpi", root / "usr", "--launcher", launcher, user.image)
    done = user.fairlead(*words, "--", "/opt/app/allreduce")
    assert done.returncode == 0, done.stdout + done.stderr
    said = answer(done)
    assert said["proof"]["holds"]
    assert any("glibc/libc.so.6" in bind["source"] for bind in said["binds"])
    own = user.fairlead(
        "run", "-n", "2", "-q", "--mpi", "container", user.image, "--", "/opt/app/allreduce"
    )
    assert len({b for t in (done.stderr, own.stdout) for _, b in hosts.ranks_of(t).values()}) == 1


def test_user_aborted_job_leaves_no_process(user: User) -> None:
    """Each rank's Apptainer has a helper that serves the image; an abort cuts it off from us."""
    for pid in processes_of(user.uid):
        os.kill(pid, signal.SIGKILL)
    program = "from mpi4py import MPI; MPI.COMM_WORLD.rank and MPI.COMM_WORLD.Abort(9) or input()"
    done = user.fairlead("run", "-n", "2", "--json", user.image, "--", "python3", "-c", program)
    assert done.returncode not in (0, 121, 122, 123), done.stdout
    assert processes_of(user.uid) == {}


def test_user_mpich_5_needs_the_planned_variables(user: User) -> None:
    """What the plan sets is no superstition: without it, large messages abort."""
    done = user.fairlead("run", "-n", "2", "--dry-run", user.image, "--", "/opt/app/exchange")
    setting = "APPTAINERENV_MPIR_CVAR_CH4_CMA_ENABLE=0"
    assert setting in done.stdout
    bare = user.run("sh", "-c", done.stdout.replace(setting, ""))
    assert bare.returncode != 0
    assert bare.stdout.count(": 0 wrong") < 2
    assert user.run("sh", "-c", done.stdout).returncode == 0


@pytest.mark.full
def test_user_unpacks_a_sandbox_of_their_own_and_runs_it(user: User) -> None:
    script = (
        "import sys; from pathlib import Path; from fairlead.base.progress import Silent; "
        "from fairlead_build.formats.sandbox import unpack; "
        "unpack(Path(sys.argv[1]), Path('mine.sandbox'), Silent())"
    )
    made = user.run(PYTHON, "-c", script, user.image)
    assert made.returncode == 0, made.stderr
    assert (user.home / "mine.sandbox" / "etc").stat().st_uid == user.uid
    assert tree_digest(user.home / "mine.sandbox") == tree_digest(user.image)
    done = user.fairlead("run", "-n", "2", "./mine.sandbox", "--", "/opt/app/allreduce")
    assert done.returncode == 0, done.stderr
    assert set(hosts.ranks_of(done.stdout)) == {0, 1}
