"""A real Slurm on this machine: its controller, munge, and nodes, each with namespaces of its own.

Debian's packages are unpacked into a folder and started from there; none is installed, so `srun` is on the
PATH of nobody who does not ask for it. A node is its slurmd and all that this starts: killing it is a node
that fails. All state is in one folder, and nothing is left.

``python -m tests.system.slurm COMMAND…`` is this machine as a cluster of one node, for one command.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.system import hosts

from fairlead.base.paths import atomic_folder, locked
from fairlead.elf.patchelf import find_patchelf

NODES = ("n1", "n2", "n3", "n4")
PACKAGES = (
    "slurmd", "slurmctld", "slurm-client", "slurm-wlm-basic-plugins", "munge", "libmunge2", "libpmix2",
    "libhwloc15", "libevent-core-2.1-7", "libevent-pthreads-2.1-7",
)  # fmt: skip
_PLUGINS = "usr/lib/x86_64-linux-gnu/slurm-wlm"
# Where Debian's plugin looks for PMIx, and a path of the same length or less that moves with the folder.
_PMIX = (b"/usr/lib/x86_64-linux-gnu/pmix2/lib", b"$ORIGIN/../pmix2/lib")
_PAPERS = shutil.ignore_patterns("share", "hwloc", "*.a")
_PORTS = range(17000, 30000, len(NODES) + 1)  # below those that the kernel gives out
_CONF = """\
ClusterName=fairlead
SlurmctldHost={control}
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
# cred_expire is also how long a requeued job waits.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={spool}/%n
SlurmdLogFile={folder}/slurmd.%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=4
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
KillWait=1
MessageTimeout=4
{nodes}
PartitionName=all Nodes=ALL Default=YES
"""
# Between them: other processes, names, /dev/shm, IPC objects; the disk is shared, as on a cluster.
_NODE = """\
hostname "$1" && mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs "$2/pmix" &&
mount --rbind /sys/fs/cgroup "$2/cgroup" || exit
ulimit -c 0 # ranks that are killed leave no dump in somebody's folder
# In another network than this machine's, a new /sys lists the interfaces of that one.
if mount -t sysfs sysfs /sys 2>/dev/null; then mount --rbind "$2/cgroup" /sys/fs/cgroup; fi
shift 2
exec "$@"
"""
SITE = """\
[site]
name = "cluster"
summary = "The Slurm that the tests start."

[sources.tests]
text = "these tests"
status = "run"

[detect]
source = "tests"

[scheduler]
source = "tests"
kind = "slurm"

[launcher]
source = "tests"
kinds = ["srun", "mpiexec"]

[engine]
source = "tests"
kinds = ["apptainer"]

[fabric]
source = "tests"
kind = "ethernet"
accepts = ["self", "cma", "posix", "sysv", "shm", "sm", "tcp", "ofi_rxm"]

[watchdog]
source = "tests"
start_s = 30
"""


@cache
def programs() -> Path:
    """The folder that Slurm and munge run from."""
    files = hosts.debian_files("bookworm", *PACKAGES)
    made = hosts.KEPT / "slurm-moves"
    with locked(hosts.KEPT / ".lock"):
        if not made.is_dir():
            with atomic_folder(made) as tree:
                shutil.copytree(files / "usr", tree / "usr", symlinks=True, ignore=_PAPERS)
                _settle(tree)
    return made


def _settle(tree: Path) -> None:
    """Makes everything find its libraries and modules in its folder, wherever that is."""
    library = tree / "usr/lib/x86_64-linux-gnu"
    plugin = tree / _PLUGINS / "mpi_pmix_v4.so"
    text = plugin.read_bytes()
    assert text.count(_PMIX[0]) == 1
    plugin.write_bytes(text.replace(_PMIX[0], _PMIX[1].ljust(len(_PMIX[0]), b"\0")))
    (library / "pmix2/lib/libpmix.so").symlink_to("libpmix.so.2")
    beside = (
        "../lib/x86_64-linux-gnu/slurm-wlm",
        "../lib/x86_64-linux-gnu",
        "../slurm-wlm",
        "",
        "..",
        "../pmix2/lib",
    )
    search = ":".join(f"$ORIGIN/{place}" for place in (*beside, "../.."))
    places = [tree / "usr/bin", tree / "usr/sbin", tree / _PLUGINS, library, library / "pmix2/lib"]
    for path in (p for place in places for p in sorted(place.iterdir())):
        if not path.is_symlink() and path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            words = [find_patchelf(), "--force-rpath", "--set-rpath", search, path]
            subprocess.run([str(w) for w in words], check=True)
    for name in ("slurmd", "slurmctld", "slurmstepd"):
        link = tree / "usr/sbin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}-wlm")


@dataclass
class Cluster:
    """A running Slurm.

    Attributes:
        environ: what a user of it has in the shell.
    """

    folder: Path
    environ: dict[str, str]
    control: tuple[str, ...] = ()
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *words: str | Path, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
        """A command of a user's, on the node that has the controller."""
        return subprocess.run(
            [*self.control, *map(str, words)],
            capture_output=True,
            text=True,
            env=self.environ,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
        )

    def fairlead(
        self, *words: str | Path, limit_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "fairlead", *words, limit_s=limit_s)

    def said(self, *words: str | Path) -> str:
        """What a command prints that has to work."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """What ``scontrol show job`` says of a job."""
        words = self.said("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def ended(self, number: str, limit_s: float = 60) -> dict[str, str]:
        """A job once it has ended."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL")
        waited(lambda: self.job(number)["JobState"] in over, limit_s, f"job {number} goes on")
        return self.job(number)

    def empty(self) -> bool:
        """Whether no job is left."""
        return not self.said("squeue", "--noheader").strip()

    def processes(self) -> list[str]:
        """Command lines of what runs on the nodes, Slurm's own daemons apart."""
        found = []
        mine = set()
        for process in self.nodes.values():
            with suppress(OSError):
                mine.add(Path(f"/proc/{process.pid}/ns/pid_for_children").readlink())
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (entry / "ns/pid").readlink() in mine:
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return [words for words in found if words and "slurmd" not in words.split()[0]]

    def start(self, node: str) -> None:
        """Switches a node on."""
        base = self.folder / "slurm"
        spaces = ("--mount-proc", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
        daemon = (base / "usr/sbin/slurmd", "-D", "-N", node, "-d", base / "usr/sbin/slurmstepd")
        words = (
            *self.where.get(node, ()), "unshare", *spaces, "sh", "-c", _NODE, "sh", node, self.folder, *daemon,
        )  # fmt: skip
        self.nodes[node] = _daemon(words, self.environ, self.folder / f"{node}.out")

    def fail(self, node: str) -> None:
        """Switches a node off, with all that runs on it."""
        process = self.nodes.pop(node)
        process.kill()
        process.wait()

    @contextmanager
    def in_use(self) -> Iterator[Cluster]:
        """All nodes idle; afterwards no job and no process is left on any."""
        for node in NODES:
            if node not in self.nodes:
                self.start(node)
        self.idle()
        yield self
        self.run("scancel", "--user=root")
        waited(self.empty, 60, "a job is left")
        waited(lambda: not self.processes(), 60, "a process is left on a node")

    def idle(self, limit_s: float = 60) -> None:
        """Waits until every node can take a job."""
        waited(
            lambda: (
                self.said("sinfo", "--noheader", "-N", "-p", "all", "-o", "%t").split()
                == ["idle"] * len(self.nodes)
            ),
            limit_s,
            "nodes are not idle",
        )


@contextmanager
def slurm(
    control: tuple[str, ...] = (),
    address: str = "127.0.0.1",
    where: Mapping[str, tuple[str, tuple[str, ...]]] | None = None,
    names: tuple[str, ...] = NODES,
    cpus: int = 2,
    settings: str = "",
) -> Iterator[Cluster]:
    """A cluster; needs root.

    Args:
        names: of its nodes.
        cpus: that each node says it has.
        control: words before a command that run it where the controller is to be.
        address: the controller's.
        settings: further lines of slurm.conf.
        where: address of some of the nodes, and words before a command that run it there.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-slurm-")))
        folder.chmod(0o755)
        base = folder / "slurm"  # where ordinary users can read it
        shutil.copytree(programs(), base, symlinks=True)
        # Where no engine looks by itself, as at real sites.
        spool = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-spool-", dir="/run"))
        )
        spool.chmod(0o755)
        for name in ("state", "pmix", "cgroup", "sites"):
            (folder / name).mkdir()
        (folder / "sites/cluster.toml").write_text(SITE)
        first = stack.enter_context(_ports())
        placed = where or {}
        rows = [
            f"NodeName={node} NodeHostname={node} NodeAddr={placed[node][0] if node in placed else address} "
            f"Port={first + 1 + i} CPUs={cpus} RealMemory=1000"
            for i, node in enumerate(names)
        ]
        (folder / "slurm.conf").write_text(
            _CONF.format(
                control=f"localhost({address})", port=first, folder=folder, spool=spool, plugins=base / _PLUGINS,
                nodes="\n".join(rows),
            )
            + settings
        )  # fmt: skip
        (folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={folder}/pmix\n")
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FAIRLEAD_"))},
            "PATH": f"{base}/usr/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "FAIRLEAD_SITES": str(folder / "sites"),
            "FAIRLEAD_SITE": "cluster",
        }
        cluster = Cluster(
            folder, environ, control, {node: words for node, (_, words) in placed.items()}
        )
        munged = (
            base / "usr/sbin/munged", "--foreground", "--force", f"--socket={folder}/munge.socket",
            f"--key-file={key}", f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        stack.enter_context(_ended(_daemon(munged, environ, folder / "munged.out")))
        waited((folder / "munge.socket").exists, 20, "munged does not come up")
        controller = (*control, base / "usr/sbin/slurmctld", "-c", "-D")
        stack.enter_context(_ended(_daemon(controller, environ, folder / "slurmctld.out")))
        stack.callback(lambda: [cluster.fail(node) for node in list(cluster.nodes)])
        for node in names:
            cluster.start(node)
        waited(lambda: cluster.run("sinfo").returncode == 0, 20, "slurmctld does not come up")
        cluster.idle()
        yield cluster


@contextmanager
def _ports() -> Iterator[int]:
    """The first of a cluster's ports, which nobody uses, and no other cluster of this machine takes meanwhile."""
    for first in _PORTS:
        with socket.socket(socket.AF_UNIX) as held:
            try:
                held.bind(f"\0fairlead-slurm-{first}")
                for port in range(first, first + _PORTS.step):
                    with socket.socket() as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind(("", port))
            except OSError:
                continue
            yield first
            return
    raise AssertionError("no port below 30000 is free")


def _daemon(
    words: tuple[str | Path, ...], environ: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            [str(w) for w in words],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,
        )


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def waited(holds: Callable[[], bool], limit_s: float, otherwise: str) -> None:
    """Waits until something holds; fails with ``otherwise`` when it does not in time."""
    late = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < late, otherwise
        time.sleep(0.05)


def main(words: list[str]) -> int:
    """A command where this machine is a node of Slurm with twice the cores it has: ranks can share them."""
    with slurm(names=NODES[:1], cpus=2 * len(os.sched_getaffinity(0))) as cluster:
        return subprocess.run(words, env=cluster.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
