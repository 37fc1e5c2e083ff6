"""Jobs on two hosts that share nothing but the disk and a network: each message crosses the cable."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.shared import own
from tests.system import hosts, netns, slurm
from tests.system.hosts import answer
from tests.system.netns import Host, launcher, two_hosts
from tests.system.test_leave import x86_64_only

import fairlead as fairlead_package
from fairlead.launch import nodes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")

MANY = 8 << 20
SEND = f"""
from mpi4py import MPI
world = MPI.COMM_WORLD
other, got = 1 - world.rank, bytearray({MANY})
world.Sendrecv(bytes([7 + world.rank]) * {MANY}, other, 0, got, other, 0)
assert got == bytes([7 + other]) * {MANY}
print(f"rank {{world.rank}} on {{MPI.Get_processor_name()}}\\n", end="")
"""
TOGETHER = "from mpi4py import MPI; import os, signal; rank = MPI.COMM_WORLD.Get_rank(); MPI.COMM_WORLD.Barrier()"
SITE = """
[site]
name = "elsewhere"
summary = "A cluster whose messages must not go over its management network."

[sources.test]
text = "this test"
status = "guess"

[detect]
source = "test"

[engine]
source = "test"
kinds = ["apptainer"]

[launcher]
source = "test"
kinds = ["mpiexec"]

[fabric]
source = "test"
kind = "ethernet"
accepts = ["self", "cma", "posix", "sysv", "shm", "cxi"]
"""


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as pair:
        yield pair


@pytest.fixture
def pair(network: tuple[Host, Host]) -> Iterator[tuple[Host, Host]]:
    """The two hosts; afterwards no process, no mount and no shared memory is new on either."""
    before = [(host.mounts(), host.memory()) for host in network]
    yield network
    late = time.monotonic() + 10  # what the other host has lost the launcher of ends by itself
    while any(host.processes() for host in network) and time.monotonic() < late:
        time.sleep(0.05)
    for host, (mounts, memory) in zip(network, before, strict=True):
        assert host.processes() == []
        # Those of other tests may be seen, and go meanwhile.
        assert not Counter(host.mounts()) - Counter(mounts)
        assert not host.memory() - memory


def mpiexec(prefix: Path) -> Path:
    return prefix / "bin/mpiexec.hydra"


def proved(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the two ranks of a ``--json`` call saw, which has to be two hosts."""
    assert done.returncode == 0, done.stdout + done.stderr
    proof = answer(done)["proof"]
    assert proof["holds"] and proof["findings"] == []
    ranks: list[dict[str, Any]] = proof["ranks"]
    assert [(r["rank"], r["size"], r["host"]) for r in ranks] == [(0, 2, "node1"), (1, 2, "node2")]
    for space in ("net", "pid", "ipc", "shm"):
        assert len({r["namespaces"][space] for r in ranks}) == 2, space
    assert all(r["ring_ok"] and r["mpi_count"] == 1 for r in ranks)
    return ranks


def refused(done: subprocess.CompletedProcess[str], code: int, check: str) -> str:
    """All words of the one finding that ended a ``--json`` call."""
    said = answer(done)
    assert done.returncode == code == said["exit_code"], done.stdout + done.stderr
    (finding,) = said["findings"]
    assert finding["check"] == check, finding
    return " ".join(finding.values())


@pytest.mark.parametrize(
    ("mpi", "variables", "title", "transport"),
    [
        ("mpich", (), "MPICH Version: 5.0.2", "ucx: cma, self, tcp"),
        ("mpich", ("MPIR_CVAR_CH4_NETMOD=ofi", "FI_PROVIDER=tcp"), "MPICH Version: 5.0.2", "ofi: tcp"),
        ("intel", (), "Intel(R) MPI Library 2021.18.1", "ofi: tcp"),
        ("container", ("FI_PROVIDER=tcp",), "MPICH Version: 3.4.3", "ofi: tcp"),
    ],
)  # fmt: skip
def test_ranks_on_two_hosts_are_proved_and_their_bytes_cross(
    mpi: str, variables: tuple[str, ...], title: str, transport: str, pair: tuple[Host, Host]
) -> None:
    one, two = pair
    prefix, rsh = hosts.mpich(), netns.MPICH_RSH
    if mpi == "intel":
        prefix, rsh = hosts.intel(), netns.INTEL_RSH
    before = one.sent(), two.sent()
    done = one.fairlead(
        "run", "-n", "2", "--json", "--launcher", launcher(one, mpiexec(prefix), rsh),
        "--mpi", "container" if mpi == "container" else prefix,
        *(word for variable in variables for word in ("--env", variable)),
        hosts.image(), "--", "python3", "-c", SEND,
    )  # fmt: skip
    ranks = proved(done)
    said = answer(done)
    for rank in ranks:
        assert rank["version"].startswith(title), rank
        assert rank["mpi_path"] == said["mpi"]["file"]
        assert rank["mpi_inode"] == said["proof"]["planned_inode"] or mpi == "container"
    # Rank 0 tells for all, where an MPI tells it once only.
    assert f"{ranks[0]['netmod']}: {', '.join(ranks[0]['providers'])}" == transport
    assert {"rank 0 on node1", "rank 1 on node2"} <= set(done.stderr.splitlines())
    assert sorted((r["rank"], r["exit_code"]) for r in said["ranks"]) == [("0", 0), ("1", 0)]
    assert one.sent() - before[0] > MANY and two.sent() - before[1] > MANY


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_nodes_that_are_named_get_their_ranks_and_bytes_cross(
    mpi: str, pair: tuple[Host, Host]
) -> None:
    """``-N`` and ``--hosts``, with the launcher as it is."""
    one, two = pair
    prefix = hosts.intel() if mpi == "intel" else hosts.mpich()
    remote = launcher(one, mpiexec(prefix)).with_name("rsh")
    words = ("-bootstrap", "rsh", "-bootstrap-exec") if mpi == "intel" else netns.MPICH_RSH
    before = one.sent(), two.sent()
    done = one.fairlead(
        "run", "-N", "2", "-n", "2", "--hosts", "node1,node2", "--json", "--mpi", prefix,
        *(f"--launcher-arg={word}" for word in (*words, remote)),
        hosts.image(), "--", "python3", "-c", SEND,
    )  # fmt: skip
    proved(done)
    assert answer(done)["launcher"]["kind"] == "hydra"
    assert one.sent() - before[0] > MANY and two.sent() - before[1] > MANY


@pytest.mark.parametrize(("mpi", "pmi"), [("mpich", "pmi2"), ("openmpi", "pmix")])
def test_slurms_nodes_on_two_hosts_are_connected_and_bytes_cross(
    mpi: str, pmi: str, pair: tuple[Host, Host]
) -> None:
    one, two = pair
    prefix = hosts.openmpi() if mpi == "openmpi" else hosts.mpich()
    where = {
        node: (netns.ADDRESSES[host.name], ("nsenter", "--target", str(host.init), "--net", "--"))
        for node, host in zip(slurm.NODES, (one, one, two, two), strict=True)
    }
    with slurm.slurm(where["n1"][1], netns.ADDRESSES["node1"], where) as cluster:
        before = one.sent(), two.sent()
        done = cluster.fairlead(
            "run", "-N", "2", "-n", "2", "--hosts", "n2,n3", "--json", "--mpi", prefix,
            hosts.image(), "--", "python3", "-c", SEND,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        said = answer(done)
        assert said["launcher"]["pmi"] == pmi
        assert {r["host"] for r in said["proof"]["ranks"]} == {"n2", "n3"}
        assert len({r["namespaces"]["net"] for r in said["proof"]["ranks"]}) == 2
        assert one.sent() - before[0] > MANY and two.sent() - before[1] > MANY


def test_ranks_on_one_host_send_nothing_through_the_cable(pair: tuple[Host, Host]) -> None:
    """Else the test before would prove nothing."""
    one, two = pair
    together = launcher(one, mpiexec(hosts.mpich()), hosts="node1:2")
    before = one.sent(), two.sent()
    done = one.fairlead(
        "run", "-n", "2", "--json", "--launcher", together, hosts.image(), "--", "python3", "-c", SEND
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r["host"] for r in answer(done)["proof"]["ranks"]} == {"node1"}
    assert one.sent() - before[0] < 10_000 and two.sent() - before[1] < 10_000


def test_messages_of_every_kind_arrive_whole_on_the_other_host(pair: tuple[Host, Host]) -> None:
    one, _ = pair
    done = one.fairlead(
        "run", "-n", "2", "--json", "--launcher", launcher(one, mpiexec(hosts.mpich())),
        hosts.image_with_programs(), "--", "/opt/app/exchange",
    )  # fmt: skip
    proved(done)
    assert {"rank 0: 0 wrong", "rank 1: 0 wrong"} <= set(done.stderr.splitlines())


def test_transport_between_hosts_that_the_site_does_not_accept_is_refused(
    pair: tuple[Host, Host], tmp_path: Path
) -> None:
    one, _ = pair
    profile = tmp_path / "fairlead/sites/elsewhere.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text(SITE)
    for where, code in (("node1:1,node2:1", 122), ("node1:2", 0)):
        done = one.fairlead(
            "run", "-n", "2", "--json", "--site", "elsewhere",
            "--launcher", launcher(one, mpiexec(hosts.mpich()), hosts=where),
            hosts.image(), "--", "python3", "-c", TOGETHER,
            env={"XDG_CONFIG_HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        if code:
            text = refused(done, 122, "transport")
            assert "messages go over tcp" in text and "site elsewhere accepts" in text


def test_host_that_never_answers_is_named(pair: tuple[Host, Host]) -> None:
    one, _ = pair
    silent = 'case "$*" in *node2*) exec sleep 1000 ;; esac'
    done = one.fairlead(
        "run", "-n", "2", "--json", "--watchdog", "5",
        "--launcher", launcher(one, mpiexec(hosts.mpich()), before=silent),
        hosts.image(), "--", "python3", "-c", TOGETHER,
    )  # fmt: skip
    text = refused(done, 124, "watchdog")
    assert "rank 1: never started by the launcher" in text
    assert "rank 0: waits for the addresses of the other ranks (on node1)" in text


def test_rank_that_ends_before_mpi_starts_is_named_and_who_waits_for_it(
    pair: tuple[Host, Host],
) -> None:
    one, _ = pair
    early = f"import os, sys\nif os.environ['PMI_RANK'] == '0': sys.exit(4)\n{TOGETHER}"
    done = one.fairlead(
        "run", "-n", "2", "--json", "--watchdog", "3",
        "--launcher", launcher(one, mpiexec(hosts.mpich())),
        hosts.image(), "--", "python3", "-c", early,
    )  # fmt: skip
    text = refused(done, 124, "watchdog")
    assert "rank 0: exit code 4 before MPI_Init (on node1)" in text
    assert "rank 1: in MPI_Init (on node2)" in text


@pytest.mark.parametrize(
    ("end", "code"), [("raise SystemExit(7)", 7), ("os.kill(os.getpid(), signal.SIGSEGV)", 139)]
)
def test_code_of_a_rank_on_the_other_host_is_the_runs(
    end: str, code: int, pair: tuple[Host, Host]
) -> None:
    one, _ = pair
    done = one.fairlead(
        "run", "-n", "2", "--json", "--launcher", launcher(one, mpiexec(hosts.mpich())),
        hosts.image(), "--", "python3", "-c", f"{TOGETHER}\nif rank: {end}",
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    said = answer(done)
    assert said["exit_code"] == code and said["error"]["where"] == "rank 1"


@pytest.mark.full
def test_rank_that_fails_within_mpi_does_not_leave_the_other_host_waiting(
    pair: tuple[Host, Host],
) -> None:
    """Between hosts MPICH's launcher ends the others only after a signal."""
    one, _ = pair
    fails = f"{TOGETHER}\nif rank: os._exit(3)\nMPI.COMM_WORLD.Barrier()"
    done = one.fairlead(
        "run", "-n", "2", "--json", "--launcher", launcher(one, mpiexec(hosts.mpich())),
        hosts.image(), "--", "python3", "-c", fails,
    )  # fmt: skip
    assert "rank 1, exit code 3" in refused(done, 124, "rank-died")


@pytest.mark.parametrize("engine", ["podman", "charliecloud"])
def test_other_engine_on_two_hosts_is_proved_and_a_crash_leaves_nothing_on_either(
    engine: str, pair: tuple[Host, Host]
) -> None:
    """A container of Podman's is not a child of the launcher's: each host's own guard has to end it."""
    one, two = pair
    stores = own("/tmp", "fairlead-podman.*")
    words = (
        "run", "-n", "2", "--json", "--engine", engine,
        "--launcher", launcher(one, mpiexec(hosts.mpich())), hosts.image(), "--", "python3", "-c",
    )  # fmt: skip
    before = one.sent(), two.sent()
    done = one.fairlead(*words, SEND)
    for rank in proved(done):
        assert rank["version"].startswith("MPICH Version: 5.0.2")
    assert {"rank 0 on node1", "rank 1 on node2"} <= set(done.stderr.splitlines())
    assert one.sent() - before[0] > MANY and two.sent() - before[1] > MANY
    crash = "if rank == 0: os.kill(os.getpid(), signal.SIGSEGV)\nMPI.COMM_WORLD.Barrier()"
    done = one.fairlead(*words, f"{TOGETHER}\n{crash}")
    assert done.returncode == 139, done.stdout + done.stderr
    assert answer(done)["error"]["where"] == "rank 0"
    late = time.monotonic() + 60
    new = own("/tmp", "fairlead-podman.*") - stores  # other tests' among them, which go
    while new & own("/tmp", "fairlead-podman.*") and time.monotonic() < late:
        time.sleep(0.05)
    assert not new & own("/tmp", "fairlead-podman.*")


def test_rank_that_crashes_before_the_other_hosts_agent_is_up_leaves_nothing(
    pair: tuple[Host, Host], tmp_path: Path
) -> None:
    """Hydra kills what it has started there; `pair` looks what is left."""
    one, two = pair
    python = Path(sys.executable).resolve()
    shutil.copy(python, tmp_path / "python3")
    slow = tmp_path / "slow"
    slow.write_text(
        f'#!/bin/sh\nsleep 2\nPYTHONHOME={sys.base_prefix} exec {tmp_path}/python3 "$@"\n'
    )
    slow.chmod(0o755)
    crash = "if rank == 0: os.kill(os.getpid(), signal.SIGSEGV)\nMPI.COMM_WORLD.Barrier()"
    with mounted_over(two, slow, python):
        done = one.fairlead(
            "run", "-n", "2", "--json", "--launcher", launcher(one, mpiexec(hosts.mpich())), hosts.image(), "--",
            "python3", "-c", f"{TOGETHER}\n{crash}",
        )  # fmt: skip
        assert done.returncode == 139, done.stdout + done.stderr
        late = time.monotonic() + 10
        while two.memory() - one.memory() and time.monotonic() < late:
            time.sleep(0.1)


@pytest.mark.parametrize("engine", ["apptainer", "podman", "charliecloud"])
def test_killed_run_leaves_no_rank_on_the_other_host(engine: str, pair: tuple[Host, Host]) -> None:
    one, two = pair
    rounds = f"{TOGETHER}; print('up', flush=True)\nwhile True: MPI.COMM_WORLD.Barrier()"
    words = one.words(
        sys.executable, "-m", "fairlead", "run", "-n", "2", "--quiet", "--engine", engine,
        "--launcher", launcher(one, mpiexec(hosts.mpich())),
        hosts.image(), "--", "python3", "-c", rounds,
    )  # fmt: skip
    run = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout and [run.stdout.readline() for _ in "12"] == ["up\n"] * 2
        assert any("Barrier" in words for words in two.processes())
        (fairlead,) = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        os.kill(int(fairlead), signal.SIGKILL)
    finally:
        run.communicate()  # `pair` looks what is left
        # This once nobody could clear up after the MPI on the run's own host either.
        for path in Path(f"/proc/{one.init}/root/dev/shm").iterdir():
            if path.name.startswith(("mpich_shm_", "ucx_shm_")):
                path.unlink()


@contextmanager
def mounted_over(host: Host, source: Path, target: Path) -> Iterator[None]:
    """Another file in the place of ``target``, on one host only."""
    subprocess.run(host.words("mount", "--bind", source, target), check=True)
    try:
        yield
    finally:
        subprocess.run(host.words("umount", target), check=True)


@pytest.mark.parametrize("engine", ["apptainer", "charliecloud"])
def test_other_image_at_the_same_path_of_one_host_is_found_before_its_ranks_start(
    engine: str, pair: tuple[Host, Host], tmp_path: Path
) -> None:
    one, two = pair
    image, other = tmp_path / "app.sif", tmp_path / "other.sif"
    shutil.copyfile(hosts.image(), image)
    shutil.copyfile(hosts.image_with_programs(), other)
    words = (
        "run", "-n", "2", "--json", "--engine", engine, "--launcher", launcher(one, mpiexec(hosts.mpich())),
        image, "--", "python3", "-c", SEND,
    )  # fmt: skip
    before = one.fairlead(*words)
    proved(before)
    opened = image
    if engine == "charliecloud":
        line = answer(before)["command_line"]
        opened = Path(next(word for word in line.split() if "/unpacked/" in word))
        other = tmp_path / "tree"
        (other / "bin").mkdir(parents=True)
    with mounted_over(two, other, opened):
        done = one.fairlead(*words)
    text = refused(done, 122, "image-on-nodes")
    assert text.startswith("error node2 has another image than this host"), text
    assert "rank 1 on node2" not in done.stderr


def test_copy_of_the_image_on_the_other_host_is_verified_by_its_digest(
    pair: tuple[Host, Host], tmp_path: Path
) -> None:
    one, two = pair
    image, copy = tmp_path / "app.sif", tmp_path / "copy.sif"
    shutil.copyfile(hosts.image(), image)
    shutil.copyfile(image, copy)
    words = (
        "run", "-n", "2", "--json", "--launcher", launcher(one, mpiexec(hosts.mpich())),
        image, "--", "python3", "-c", SEND,
    )  # fmt: skip
    with mounted_over(two, copy, image):
        proved(one.fairlead(*words))
        with copy.open("r+b") as file:  # also where its digest is known
            file.seek(1 << 20)
            file.write(b"a byte")
        refused(one.fairlead(*words), 122, "image-on-nodes")


def test_host_with_next_to_no_shared_memory_is_named(pair: tuple[Host, Host]) -> None:
    one, two = pair
    subprocess.run(
        two.words("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/dev/shm"), check=True
    )
    try:
        done = one.fairlead(
            "run", "-n", "2", "--json", "--launcher", launcher(one, mpiexec(hosts.mpich())),
            hosts.image(), "--", "python3", "-c", SEND,
        )  # fmt: skip
    finally:
        subprocess.run(two.words("umount", "/dev/shm"), check=True)
    assert "node2: /dev/shm" in refused(done, 123, "node-shm")


ROUNDS = f"{TOGETHER}; print('up', flush=True)\nwhile True: MPI.COMM_WORLD.Barrier()"


@contextmanager
def running(one: Host, *words: str | Path, code: str = ROUNDS) -> Iterator[subprocess.Popen[str]]:
    """A run with one rank on each host, from when both are up."""
    command = one.words(
        sys.executable, "-m", "fairlead", "run", "-n", "2", "--json",
        "--launcher", launcher(one, mpiexec(hosts.mpich())), *words,
        hosts.image(), "--", "python3", "-c", code,
    )  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr and run.stdout
        said: list[str] = []
        while said.count("up\n") < 2:
            said.append(run.stderr.readline())
            assert said[-1], [*said, run.stdout.read()]
        try:
            yield run
        finally:
            run.kill()


def ended(run: subprocess.Popen[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    out, err = run.communicate(timeout=limit_s)
    return subprocess.CompletedProcess(run.args, run.returncode, out, err)


def is_clear(host: Host, limit_s: float) -> bool:
    """Whether all processes of a host have ended within that time."""
    late = time.monotonic() + limit_s
    while host.processes() and time.monotonic() < late:
        time.sleep(0.1)
    return not host.processes()


@pytest.mark.parametrize("engine", ["apptainer", *(pytest.param(e, marks=pytest.mark.full) for e in ("podman", "charliecloud"))])  # fmt: skip
def test_cable_that_is_pulled_is_named_and_both_hosts_are_clear_a_minute_later(
    engine: str, pair: tuple[Host, Host]
) -> None:
    one, two = pair
    with running(one, "--engine", engine) as run:
        one.link("down")
        try:
            begun = time.monotonic()
            text = refused(ended(run, 60), 124, "node-lost")
            assert is_clear(one, 5) and is_clear(two, 60 - (time.monotonic() - begun))
        finally:
            one.link("up")
    assert text.startswith("error node2 cannot be reached any more node2, with rank 1 "), text
    assert any(words in text for words in ("timed out", "No route", "unreachable"))


@pytest.mark.parametrize("called", [True, False], ids=["watched", "before its agent has called"])
def test_host_that_dies_is_named_and_the_other_is_clear(called: bool, tmp_path: Path) -> None:
    (tmp_path / "node.py").write_text("import time; time.sleep(60)\n")
    with two_hosts() as (one, two), ExitStack() as stack:
        if not called:
            agent = Path(nodes.__file__).with_name("node.py")
            two_only = mounted_over(two, tmp_path / "node.py", agent)
            stack.enter_context(
                suppress(subprocess.CalledProcessError)
            )  # nobody is left to unmount it
            stack.enter_context(two_only)
        with running(one) as run:
            os.kill(two.init, signal.SIGKILL)
            done = ended(run, 60)
        assert is_clear(one, 5) and not one.memory()
        said = answer(done)
        assert done.returncode, done.stdout
        found = said.get("error") or said["findings"][0]
        assert found["check"] == "node-lost" and found["where"].startswith("node2"), done.stdout


def test_cable_that_is_down_before_the_start_is_named(pair: tuple[Host, Host]) -> None:
    one, two = pair
    remote = launcher(one, mpiexec(hosts.mpich())).with_name("rsh")
    words = (f"--launcher-arg={word}" for word in (*netns.MPICH_RSH, remote))
    two.link("down")
    try:
        done = one.fairlead(
            "run", "-n", "2", "-N", "2", "--hosts", "node1,node2", "--json", "--mpi", hosts.mpich(), *words,
            hosts.image(), "--", "python3", "-c", TOGETHER,
        )  # fmt: skip
    finally:
        two.link("up")
    said = answer(done)
    found = said.get("error") or said["findings"][0]
    assert done.returncode and found["check"] == "node-lost", done.stdout + done.stderr
    assert (found["where"], found["why"]) == ("node2", "No route to host")


def test_other_fairlead_on_the_other_host_is_reported(
    pair: tuple[Host, Host], tmp_path: Path
) -> None:
    one, two = pair
    ours = Path(fairlead_package.__file__)
    (tmp_path / "__init__.py").write_text(
        re.sub(r'__version__ = ".*"', '__version__ = "0.0.9"', ours.read_text())
    )
    with mounted_over(two, tmp_path / "__init__.py", ours):
        done = one.fairlead(
            "run", "-n", "2", "--launcher", launcher(one, mpiexec(hosts.mpich())),
            hosts.image(), "--", "python3", "-c", f"{SEND}\nimport time; time.sleep(3)",
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "node2 has another fairlead than this host" in done.stderr
    assert "node2: fairlead 0.0.9" in done.stderr


def test_shared_memory_that_a_killed_host_has_left_is_removed_by_the_next_run(
    pair: tuple[Host, Host],
) -> None:
    one, two = pair
    with running(one) as run:
        assert two.memory()
        # All at once, the agent too: as an out-of-memory killer would, or a reboot of what runs there.
        inside = ("kill", "-9", "--", "-1")
        subprocess.run(two.words(*inside), check=False)
        ended(run, 60)
    left = two.memory()
    assert left
    done = one.fairlead(
        "run", "-n", "2", "--json", "--launcher", launcher(one, mpiexec(hosts.mpich())),
        hosts.image(), "--", "python3", "-c", SEND,
    )  # fmt: skip
    proved(done)
    late = time.monotonic() + 10
    while two.memory() & left and time.monotonic() < late:
        time.sleep(0.1)
    assert not two.memory() & left


TALK = f"""
{TOGETHER}
import time; begun = time.monotonic()
print("up", flush=True)
while MPI.COMM_WORLD.allreduce(time.monotonic() - begun, MPI.MIN) < 60: time.sleep(0.1)
"""


@pytest.mark.full
@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_lost_packets_lose_no_host(loss: float, pair: tuple[Host, Host]) -> None:
    one, two = pair
    with ExitStack() as stack:
        try:
            for host in (one, two):
                stack.enter_context(netns.lossy(host, loss))
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("the kernel drops no packets at random")
        done = one.fairlead(
            "run", "-n", "2", "--json", "--watchdog", "120",
            "--launcher", launcher(one, mpiexec(hosts.mpich())),
            hosts.image(), "--", "python3", "-c", TALK, limit_s=300,
        )  # fmt: skip
    proved(done)
    assert "node2" not in done.stderr


@pytest.mark.full
def test_cable_that_is_out_for_a_while_loses_no_host(pair: tuple[Host, Host]) -> None:
    one, _ = pair
    with running(one, code=TALK) as run:
        for _ in range(2):
            one.link("down")
            time.sleep(10)
            one.link("up")
            time.sleep(5)
        done = ended(run, 120)
    proved(done)
    assert "node2" not in done.stderr


def test_clock_of_the_other_host_that_is_ahead_changes_nothing(
    pair: tuple[Host, Host], tmp_path: Path
) -> None:
    one, _ = pair
    library = hosts.preloaded("shifted_clock", tmp_path)
    ahead = f'case $1 in node2) shift; set -- node2 env LD_PRELOAD={library} "$@" ;; esac'
    seen = tmp_path / "clocks"
    clocked = (
        "run", "-n", "2", "--json",
        "--launcher", launcher(one, mpiexec(hosts.mpich()), before=f"{ahead}; echo \"$*\" >>{seen}"),
        hosts.image(), "--", "python3", "-c",
    )  # fmt: skip
    done = one.fairlead(*clocked, SEND)
    proved(done)
    assert "LD_PRELOAD" in seen.read_text()
    # Whatever goes by it, such as what has to be removed: `pair` looks.
    done = one.fairlead(*clocked, f"{TOGETHER}\nif rank: os.kill(os.getpid(), signal.SIGKILL)\nMPI.COMM_WORLD.Barrier()")  # fmt: skip
    assert done.returncode == 137, done.stdout + done.stderr
    assert answer(done)["error"]["where"] == "rank 1"


def test_clocks_that_jump_on_both_hosts_while_ranks_run_change_nothing(
    pair: tuple[Host, Host], tmp_path: Path
) -> None:
    """Of ranks and of fairlead itself: what lasts is measured by another clock."""
    one, _ = pair
    library = hosts.preloaded("shifted_clock", tmp_path)
    jumps = f"CLOCK_JUMPS=1 LD_PRELOAD={library}"
    far = f'case $1 in node2) shift; set -- node2 env {jumps} "$@" ;; esac'
    clocked = (
        "run", "-n", "2", "--json",
        "--launcher", launcher(one, mpiexec(hosts.mpich()), before=far),
        hosts.image(), "--", "python3", "-c",
    )  # fmt: skip
    env = dict(part.split("=", 1) for part in jumps.split())
    spread = "import time; seen = [time.time() for _ in range(300)]; print(max(seen) - min(seen))"
    assert float(hosts.program(sys.executable, "-c", spread, env=env).stdout) > 3000
    done = one.fairlead(*clocked, SEND, env=env)
    proved(done)
    slow = f"{TOGETHER}\nimport time\nfor _ in range(300): time.time(); time.sleep(0.01)\nMPI.COMM_WORLD.Barrier()"
    proved(one.fairlead(*clocked, slow, env=env))
    done = one.fairlead(*clocked, f"{TOGETHER}\nif rank: os.kill(os.getpid(), signal.SIGKILL)\nMPI.COMM_WORLD.Barrier()", env=env)  # fmt: skip
    assert done.returncode == 137, done.stdout + done.stderr
    assert answer(done)["error"]["where"] == "rank 1"


LEAVES = """
import sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
rest = world.Split(world.rank == 0, world.rank)
if world.rank == 0:
    sys.exit(0)
begun = time.monotonic()
"""


@x86_64_only
@pytest.mark.full
@pytest.mark.parametrize(("ranks", "code"), [(2, 124), (3, 124), (3, 0)])
def test_rank_that_leaves_those_of_another_host_waiting_is_named(
    ranks: int, code: int, pair: tuple[Host, Host]
) -> None:
    one, _ = pair
    rest = "world.Barrier()"
    if not code:  # two that go on for as long as they like, in MPI all the time
        rest = "while rest.allreduce(time.monotonic() - begun, MPI.MIN) < 50: pass"
    done = one.fairlead(
        "run", "-n", str(ranks), "--json",
        "--launcher", launcher(one, mpiexec(hosts.mpich()), hosts="node1:1,node2:2"),
        hosts.image(), "--", "python3", "-c", LEAVES + rest,
    )  # fmt: skip
    if not code:
        assert done.returncode == 0, done.stdout + done.stderr
        return
    text = refused(done, 124, "rank-left")
    assert "rank 0 on node1, which is in MPI_Finalize" in text
    assert "rank 1 in MPI_Barrier" in text


def test_nothing_is_left_of_the_hosts_themselves() -> None:
    before = Path("/proc/self/mounts").read_text()
    with two_hosts() as (one, two):
        spaces = one.spaces() | two.spaces()
        assert len(spaces) == 10
        assert Path("/proc/self/mounts").read_text() == before
        folder = one.folder
    assert not folder.exists()
    for space in Path("/proc").glob("[0-9]*/ns/*"):
        try:
            assert str(space.readlink()) not in spaces
        except OSError:
            continue  # a process that has ended, or none that we could have started
