"""The ranks of a node in one container, where an engine would give each a user namespace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.support.living import descendants
from tests.system import hosts, slurm
from tests.system.hosts import answer
from tests.system.netns import Host, launcher, two_hosts

from fairlead.doctor.install.apptainer import install_apptainer
from fairlead.engines.apptainer import find_apptainer

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces"),
    pytest.mark.skipif(
        Path("/run/systemd/system").is_dir(), reason="root joins none where systemd runs"
    ),
]

JOINED = "--engine-arg=--userns"  # root's Apptainer has one only if it asks
ENGINES = {"apptainer": (JOINED,), "charliecloud": ("--engine", "charliecloud")}
of_each_engine = pytest.mark.parametrize("engine", ENGINES)
PLACES = "import os; f = os.readlink; places = f('/proc/self/ns/user'), f('/proc/self/ns/mnt')"
EXCHANGE = (
    "from mpi4py import MPI; import os; c = MPI.COMM_WORLD; n = 1 << 23; got = bytearray(n); "
    "other = c.rank ^ 1; c.Sendrecv(bytes([c.rank]) * n, other, 0, got, other, 0); "
    "assert got == bytes([other]) * n; print('same', os.uname().nodename, flush=True)"
)


_MARK = "NODE_CONTAINER_TEST"


def holding() -> list[str]:
    """What holds containers of this test's launches."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            own = mark in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if own and b"fairlead-container" in words:
            found.append(process.name)
    return found


@contextmanager
def ready(
    code: str, *options: str | Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A run of Python code on 2 ranks, each of which has printed READY."""
    words = ("run", "-n", "2", *options, hosts.image(), "--", "python3", "-c", code)
    run = subprocess.Popen(
        [sys.executable, "-m", "fairlead", *map(str, words)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert run.stdout
        assert [run.stdout.readline() for _ in range(2)] == ["READY\n"] * 2
        yield run
    finally:
        run.kill()
        run.communicate()


def saving(seconds: int, late: str) -> str:
    """Code that saves on SIGTERM, and imports modules for it."""
    return (
        "import signal, sys, time; from mpi4py import MPI; rank = MPI.COMM_WORLD.rank\n"
        f"def save(*_):\n    time.sleep({seconds}); import {late}; open(f'saved.{{rank}}', 'w'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); print('READY', flush=True); time.sleep(60)"
    )


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(_MARK, uuid.uuid4().hex)
    before = set(Path("/dev/shm").glob("sharens*"))
    yield
    slurm.waited(lambda: not holding(), 45, "a container is left")
    new = set(Path("/dev/shm").glob("sharens*")) - before  # other tests' among them, which go
    slurm.waited(lambda: not any(path.exists() for path in new), 10, "a lock is left")


def without_shell(folder: Path) -> Path:
    """A squashfs of one program and what it loads: no shell, and no /etc/group."""
    tree = folder / "tree"
    for place in ("app", "lib64", "lib", "usr/bin", "proc", "sys", "dev", "tmp", "etc"):
        (tree / place).mkdir(parents=True)
    shutil.copy(hosts.compiled("allreduce"), tree / "app/allreduce")
    mpi = hosts.old_mpich() / "lib/libmpi.so.12"
    loaded = subprocess.run(["ldd", mpi], capture_output=True, text=True, check=True).stdout
    glibc = {
        f"/lib/x86_64-linux-gnu/lib{name}"
        for name in ("c.so.6", "m.so.6", "dl.so.2", "pthread.so.0", "rt.so.1")
    }
    behind = {word for word in loaded.split() if word.startswith("/") and "/ld-" not in word}
    for library in (str(mpi), *glibc | behind):
        shutil.copy(library, tree / "lib")
    shutil.copy("/lib64/ld-linux-x86-64.so.2", tree / "lib64")
    (tree / "etc/ld.so.conf").write_text("/lib\n")
    image = folder / "no-shell.squashfs"
    subprocess.run(["gensquashfs", "--quiet", "--pack-dir", tree, image], check=True)
    return image


@of_each_engine
def test_ranks_have_a_container_each_where_the_image_has_no_shell_to_hold_one(
    engine: str, tmp_path: Path
) -> None:
    words = ("run", "-n", "2", "--json", *ENGINES[engine], without_shell(tmp_path))
    done = hosts.fairlead(*words, "--", "/app/allreduce")
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done)["proof"]["holds"]


@of_each_engine
def test_ranks_of_a_node_are_in_one_container_and_see_what_they_would_see_in_their_own(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = {}
    code = f"{PLACES}; print(*places); [print(f'{{k}}={{v}}') for k, v in sorted(os.environ.items())]; print(os.getcwd())"
    for options in ((), ("--container-per-rank",)):
        done = hosts.fairlead(
            "run", "-n", "2", "--json", *ENGINES[engine], *options, "--output-dir", tmp_path / str(len(options)),
            hosts.image(), "--", "python3", "-c", code,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert holding() == []
        logs = [(tmp_path / str(len(options)) / f"rank.{rank}.log").read_text() for rank in (0, 1)]
        assert len({log.split("\n")[0] for log in logs}) == 1 + len(options)
        seen[options] = [line for line in logs[0].split("\n")[1:] if line]
    joined, apart = (
        {line for line in lines if not line.startswith(("FAIRLEAD_RUN_ID=", "FAIRLEAD_SPAWN="))}
        for lines in seen.values()
    )
    differ = {line.partition("=")[0] for line in joined ^ apart}
    of_engine = {f"{p}_{n}" for p in ("APPTAINER", "SINGULARITY") for n in ("BIND", "INSTANCE")}
    assert {"MPIR_CVAR_CH4_CMA_ENABLE", "UCX_POSIX_USE_PROC_LINK"} <= differ
    ports = {"MASTER_PORT", "TF_CONFIG", "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT"}
    of_launcher = {name for name in differ if name.startswith(("PMI_", "HYDRA_"))}
    of_mpi = {"MPIR_CVAR_CH4_CMA_ENABLE", "UCX_POSIX_USE_PROC_LINK"}
    of_bash = {"_"}
    assert differ <= of_engine | ports | of_launcher | of_mpi | of_bash, differ


@of_each_engine
def test_ranks_that_come_and_go_find_the_container(engine: str) -> None:
    """With two cores, the first have ended before the last begin."""
    done = hosts.fairlead(
        "run", "-q", "-n", "24", *ENGINES[engine], hosts.image(), "--", "sh", "-c", "echo $PMI_RANK"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(map(int, done.stdout.split())) == list(range(24))
    assert holding() == []


@of_each_engine
@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("MPI.Finalize(); sys.exit(3 * rank)", 3),
        ("rank and os.kill(os.getpid(), 9); MPI.COMM_WORLD.Barrier()", 137),
        ("rank and MPI.COMM_WORLD.Abort(9); MPI.COMM_WORLD.Barrier()", 9),
    ],
)
def test_end_of_a_rank_is_its_own(engine: str, program: str, code: int) -> None:
    start = "import os, sys; from mpi4py import MPI; rank = MPI.COMM_WORLD.rank; "
    done = hosts.fairlead(
        "run", "-n", "2", *ENGINES[engine], hosts.image(), "--", "python3", "-c", start + program
    )
    assert done.returncode == code, done.stderr
    assert "rank 1" in done.stderr
    assert holding() == []


@of_each_engine
def test_ranks_get_a_signal_and_time_to_save(engine: str, tmp_path: Path) -> None:
    """The image stays mounted for what a handler loads late."""
    with ready(saving(1, "sqlite3"), *ENGINES[engine], cwd=tmp_path) as run:
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=60)
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"], said
    assert holding() == []


@pytest.mark.parametrize(
    "engine", ["apptainer", pytest.param("charliecloud", marks=pytest.mark.full)]
)
def test_container_goes_when_fairlead_is_killed(engine: str) -> None:
    code = "import time; print('READY', flush=True); time.sleep(100)"
    with ready(code, *ENGINES[engine]) as run:
        assert len(holding()) == 1
        run.kill()
        run.communicate()
    slurm.waited(lambda: not holding(), 45, "the container is left")


@pytest.mark.parametrize(
    ("option", "variables"),
    [
        ("--writable-tmpfs", {}),
        ("--fakeroot", {}),
        ("--no-home", {"APPTAINER_WRITABLE_TMPFS": "1"}),
        ("--no-home", {"SINGULARITY_OVERLAY": "/some/layer"}),
    ],
)
def test_layer_to_write_to_is_a_ranks_own(option: str, variables: dict[str, str]) -> None:
    done = hosts.fairlead(
        "preflight", "-n", "2", "--json", JOINED, f"--engine-arg={option}", hosts.image(),
        env={**os.environ, **variables},
    )  # fmt: skip
    assert answer(done)["engine"]["joins"] is False


@of_each_engine
def test_what_reads_the_image_for_all_ranks_is_bound_to_no_core(engine: str) -> None:
    """Hydra binds the shell of the first rank, which starts it."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    code = (
        "import glob, os; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); "
        "(kept,) = (p for p in glob.glob('/opt/fairlead/run/kept.*') if not p.endswith(('log', 'begun', 'asked'))); "
        "print([len(os.sched_getaffinity(int(pid))) for pid in ('0', *open(kept).read().split())])"
    )
    words = ("run", "-q", "-n", "2", "--bind-to", "core", *ENGINES[engine], hosts.image())
    done = hosts.fairlead(*words, "--", "python3", "-c", code)
    cores = os.cpu_count()
    assert done.stdout.splitlines() == [f"[1{f', {cores}' * 3}]"] * 2, done.stderr


def _apptainer(tmp_path: Path, script: str) -> dict[str, str]:
    """An Apptainer in front of this machine's; the script sees its path as $real."""
    install_apptainer()
    real = find_apptainer()
    program = tmp_path / "apptainer"
    program.write_text(f'#!/bin/sh\nreal={real}\n{script}\nexec "$real" "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "FAIRLEAD_APPTAINER": str(program)}


def test_apptainer_that_knows_no_shared_containers_starts_one_a_rank(tmp_path: Path) -> None:
    old = _apptainer(
        tmp_path,
        '[ "$1" != --version ] || { echo apptainer version 1.2.5; exit; }\n'
        'case " $* " in *" --sharens "* | *" instance://"*) echo "unknown flag" >&2; exit 1;; esac',
    )
    done = hosts.fairlead(
        "run", "-n", "2", "--json", JOINED, hosts.image(), "--", "python3", "-c", EXCHANGE, env=old
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = answer(done)
    assert said["engine"]["joins"] is False and done.stderr.count("same") == 2
    assert len({rank["namespaces"]["user"] for rank in said["proof"]["ranks"]}) == 2


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('case " $* " in *" --sharens "*) echo "no room for it" >&2; exit 255;; esac', "no room for it"),
        ('case " $* " in *" instance://"*) echo "not allowed" >&2; exit 255;; esac', "not allowed"),
    ],
    ids=["start", "join"],
)  # fmt: skip
def test_node_whose_container_cannot_be_started_or_joined_is_named(
    tmp_path: Path, script: str, why: str
) -> None:
    environ = _apptainer(tmp_path, script)
    words = ("run", "-n", "2", "--json", JOINED, hosts.image(), "--", "echo", "STARTED")
    done = hosts.fairlead(*words, env=environ)
    assert done.returncode == 123, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "node-container" and os.uname().nodename in finding["what"]
    assert why in finding["why"] and "--container-per-rank" in finding["remedy"]
    assert "STARTED" not in done.stderr
    done = hosts.fairlead(words[0], "--container-per-rank", *words[1:], env=environ)
    assert done.returncode == 0 and done.stderr.count("STARTED") == 2, done.stderr


def test_engine_that_hangs_is_ended_when_the_launch_is(tmp_path: Path) -> None:
    environ = _apptainer(tmp_path, 'case " $* " in *" --sharens "*) exec sleep 1000.25;; esac')
    words = ("run", "-n", "2", "--json", "--watchdog", "5", JOINED, hosts.image(), "--", "true")
    done = hosts.fairlead(*words, env=environ)
    assert done.returncode == 123, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "node-container" and "has not started within" in finding["why"]
    left = ("pgrep", "-f", "sleep 1000.25")
    slurm.waited(lambda: subprocess.run(left, check=False).returncode == 1, 5, "the engine is left")


def test_ranks_that_do_not_start_in_the_container_are_the_watchdogs(tmp_path: Path) -> None:
    """What holds the container is no program of theirs."""
    mark, engine = tmp_path / "joined", tmp_path / "starter"
    shutil.copy("/bin/sleep", engine)  # under the name of a process of Apptainer's
    hang = f"[ -e {mark} ] && exec {engine} 1000.5; : >{mark}"
    environ = _apptainer(tmp_path, f'case " $* " in *" instance://"*) {hang};; esac')
    (tmp_path / "nsenter").write_text("#!/bin/sh\nexit 1\n")  # so that Apptainer joins them
    (tmp_path / "nsenter").chmod(0o755)
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    words = ("run", "-n", "2", "--json", "--watchdog", "5", JOINED, hosts.image(), "--", "true")
    done = hosts.fairlead(*words, env=environ)
    assert done.returncode == 124, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "watchdog"


@of_each_engine
def test_job_that_is_cancelled_lets_its_ranks_save(engine: str, tmp_path: Path) -> None:
    """Slurm sends SIGTERM to all processes of its steps; the image is still mounted for what a handler loads late."""
    with ready(saving(2, "csv, wave"), "-q", *ENGINES[engine], cwd=tmp_path) as run:
        for pid in descendants(run.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"], said
    assert holding() == []


def test_without_nsenter_ranks_are_apptainers(tmp_path: Path) -> None:
    """And they see the same."""
    (tmp_path / "nsenter").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nsenter").chmod(0o755)
    seen = []
    for path in (os.environ["PATH"], f"{tmp_path}:{os.environ['PATH']}"):
        code = "import os; print(open(f'/proc/{os.getppid()}/comm').read().strip(), os.getcwd(), os.environ['PATH'])"
        words = (
            "run",
            "-q",
            "-n",
            "2",
            "--workdir",
            "/usr",
            JOINED,
            hosts.image(),
            "--",
            "python3",
            "-c",
        )
        done = hosts.fairlead(*words, code, env={**os.environ, "PATH": path})
        assert done.returncode == 0, done.stderr
        above, *same = done.stdout.splitlines()[0].split(" ")
        seen.append((above, same))
    (entered, one), (joined, other) = seen
    assert (entered, joined) == ("fairlead-rank", "starter") and one == other


@pytest.mark.parametrize("signal_number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGCONT])
def test_signal_to_all_processes_leaves_the_container(signal_number: int, tmp_path: Path) -> None:
    """As some schedulers send their warnings; Apptainer's init is one of them."""
    code = "import time; print('READY', flush=True); time.sleep(4); import sqlite3; print('SAVED', flush=True)"
    with ready(code, "-q", JOINED) as run:
        mark = f"{_MARK}={os.environ[_MARK]}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                name = (process / "comm").read_text().strip()
                if mark in (process / "environ").read_bytes() and name in (
                    "appinit",
                    "sh",
                    "fairlead-guard",
                ):
                    found.append((name, int(process.name)))
        assert {"appinit", "fairlead-guard"} <= {name for name, _ in found}
        for _, pid in found:
            os.kill(pid, signal_number)
        said = run.communicate(timeout=60)
        assert run.returncode == 0 and said[0].count("SAVED") == 2, said


def test_variables_of_the_user_are_not_the_shells_around_a_rank() -> None:
    names = ("host", "boot", "keeper", "inside", "program", "place", "run", "kept")
    mine = {name: f"my-{name}" for name in names}
    for options in ENGINES.values():
        done = hosts.fairlead(
            "run", "-q", "-n", "2", *options, hosts.image(), "--", "env", env={**os.environ, **mine}
        )
        assert done.returncode == 0, done.stderr
        for name, value in mine.items():
            assert done.stdout.splitlines().count(f"{name}={value}") == 2, (name, options)


@pytest.mark.full
def test_image_without_a_shell_is_named(tmp_path: Path) -> None:
    from fairlead.base.progress import Silent
    from fairlead_build.formats.sandbox import unpack

    unpack(hosts.image(), tmp_path / "image", Silent())
    for name in ("sh", "dash", "bash"):
        (tmp_path / "image/usr/bin" / name).unlink(missing_ok=True)
    words = ("-n", "2", "--json", JOINED, tmp_path / "image", "--", "python3", "-c", EXCHANGE)
    done = hosts.fairlead("run", *words)
    assert done.returncode == 123, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "node-container" and "/bin/sh" in finding["why"]
    done = hosts.fairlead("run", "--container-per-rank", *words)
    assert done.returncode == 0, done.stdout + done.stderr


def held_on(host: Host) -> str:
    done = subprocess.run(
        host.words("pgrep", "-f", "fairlead-container"), capture_output=True, text=True, check=False
    )
    return done.stdout


def test_every_node_has_a_container_of_its_own() -> None:
    with two_hosts() as (one, two):
        words = (
            "run", "-n", "4", "--json", "--launcher",
            launcher(one, hosts.mpich() / "bin/mpiexec.hydra"), JOINED, hosts.image(),
        )  # fmt: skip
        done = one.fairlead(*words, "--", "python3", "-c", EXCHANGE)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr.count("same node1") == 2 and done.stderr.count("same node2") == 2
        proof = answer(done)["proof"]
        places = {(rank["host"], rank["namespaces"]["user"]) for rank in proof["ranks"]}
        assert proof["holds"] and len(places) == 2
        slurm.waited(lambda: not held_on(one) + held_on(two), 10, "a container is left")
        assert not [n for n in one.memory() | two.memory() if n.startswith("sharens")]


def test_slurms_steps_leave_no_container() -> None:
    with slurm.slurm() as cluster, cluster.in_use():
        done = cluster.fairlead(
            "run", "-N", "2", "-n", "4", "--json", "--mpi", hosts.mpich(), JOINED, hosts.image(),
            "--", "python3", "-c", EXCHANGE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        proof = answer(done)["proof"]
        places = {(rank["host"], rank["namespaces"]["user"]) for rank in proof["ranks"]}
        assert proof["holds"] and len(places) == 2
        assert done.stderr.count("same") == 4


def test_mounted_data_is_in_the_nodes_container(tmp_path: Path) -> None:
    if not shutil.which("squashfuse_ll"):
        pytest.skip("no squashfuse")
    (tmp_path / "files").mkdir()
    (tmp_path / "files/here").write_text("data")
    image = tmp_path / "data.squashfs"
    packed = hosts.fairlead("data", "pack", "--format", "squashfs", tmp_path / "files", image)
    assert packed.returncode == 0, packed.stderr
    done = hosts.fairlead(
        "run", "-q", "-n", "2", JOINED, "--mount", f"{image}:/data", hosts.image(), "--", "cat", "/data/here"
    )  # fmt: skip
    assert done.stdout == "datadata", done.stderr
