"""Hosts on one machine: all namespaces that part processes, and a network between: a cable, or a switch.

Each has its own name, address, processes, mounts, /dev/shm and IPC objects, so that an MPI cannot
but take them for two machines. They share the disk, as the nodes of a cluster do. A command comes
to another host over the network only: its launcher's rsh asks the daemon that is the host's init.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.system.hosts import program as run_program

PROGRAMS = Path(__file__).with_name("programs")
ADDRESSES = {"node1": "10.77.0.1", "node2": "10.77.0.2"}
CABLE = "veth0"
PORT = 514  # rsh's
# How launchers are told that the next word is their rsh; Intel's fills the first host otherwise.
MPICH_RSH = ("-launcher", "rsh", "-launcher-exec")
INTEL_RSH = ("-ppn", "1", "-bootstrap", "rsh", "-bootstrap-exec")
# What a login gives; a launcher has to bring the rest.
_LOGIN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": os.environ.get("HOME", "/")}
_INIT = """\
hostname "$1" && mount --bind "$2" /etc/hosts && mount -t tmpfs tmpfs /dev/shm &&
exec 9</sys/fs/cgroup &&
mount -t sysfs sysfs /sys && # the network's interfaces that are listed there are the mounter's
mount -c --rbind /proc/self/fd/9 /sys/fs/cgroup && exec 9<&- && # Podman needs them
ip link set lo up && shift 2 && exec "$@"
"""


@dataclass(frozen=True)
class Host:
    """One of them.

    Attributes:
        init: its first process, by the number that this machine gives it.
        folder: a folder that both hosts see.
    """

    name: str
    init: int
    folder: Path

    def words(self, *words: str | Path) -> list[str]:
        """The words that run a command on this host."""
        spaces = ("--net", "--uts", "--ipc", "--pid", "--mount")
        return ["nsenter", "--target", str(self.init), *spaces, "--", *map(str, words)]

    def fairlead(
        self, *words: str | Path, env: Mapping[str, str] | None = None, limit_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """``fairlead WORDS``, typed on this host."""
        return run_program(
            *self.words(sys.executable, "-m", "fairlead", *words), env=env, limit_s=limit_s
        )

    def link(self, state: str) -> None:
        """Its end of the cable, ``up`` or ``down``."""
        _on(self, "ip", "link", "set", CABLE, state)

    def sent(self) -> int:
        """Bytes that have gone from it into the cable."""
        return self._counter(9)

    def packets(self) -> int:
        """As :meth:`sent`, of packets."""
        return self._counter(10)

    def _counter(self, column: int) -> int:
        lines = Path(f"/proc/{self.init}/net/dev").read_text().splitlines()
        (counters,) = [line.split() for line in lines if line.strip().startswith(f"{CABLE}:")]
        return int(counters[column])

    def spaces(self) -> frozenset[str]:
        """Its namespaces, as the kernel calls them."""
        return frozenset(_space(self.init, kind) for kind in ("net", "uts", "ipc", "pid", "mnt"))

    def processes(self) -> list[str]:
        """Command lines of what runs on it, its init apart."""
        mine, found = _space(self.init, "pid"), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if int(entry.name) != self.init and _space(int(entry.name), "pid") == mine:
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # it has ended
        return [words for words in found if words]

    def mounts(self) -> list[str]:
        return Path(f"/proc/{self.init}/mounts").read_text().splitlines()

    def memory(self) -> frozenset[str]:
        """The names in its /dev/shm."""
        return frozenset(path.name for path in Path(f"/proc/{self.init}/root/dev/shm").iterdir())


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """``node1`` and ``node2``, joined by a cable; needs root. Nothing is left of them afterwards."""
    with _apart(ADDRESSES) as (one, two):
        # Made within, it is never an interface of this machine, and it goes with either host.
        _on(one, "ip", "link", "add", CABLE, "type", "veth", "peer", CABLE, "netns", str(two.init))
        _up((one, two), ADDRESSES)
        yield one, two


@contextmanager
def switched(count: int) -> Iterator[tuple[Host, ...]]:
    """``node1`` to ``nodeCOUNT`` (at most 9), each with a cable to one switch; else as :func:`two_hosts`."""
    addresses = {f"node{number}": f"10.77.0.{number}" for number in range(1, count + 1)}
    # The switch is a host that nothing is run on.
    with _apart({**addresses, "switch": "10.77.0.254"}) as (*nodes, switch):
        _on(switch, "ip", "link", "add", "ports", "type", "bridge")
        _on(switch, "ip", "link", "set", "ports", "up")
        for host in nodes:
            peer = (f"to-{host.name}", "netns", str(switch.init))
            _on(host, "ip", "link", "add", CABLE, "type", "veth", "peer", *peer)
            _on(switch, "ip", "link", "set", peer[0], "master", "ports", "up")
        _up(nodes, addresses)
        yield tuple(nodes)


def slow_link(host: Host, rate: str) -> None:
    """Limits what leaves a host, e.g. to ``100mbit``."""
    _on(host, "tc", "qdisc", "replace", "dev", CABLE, "root", *_bucket(rate))


def slow_pair(host: Host, other: Host, rate: str) -> None:
    """Limits what a host sends to one other."""
    on, fast = ("dev", CABLE), ("htb", "rate", "100gbit", "quantum", "200000")
    _on(host, "tc", "qdisc", "replace", *on, "root", "handle", "1:", "htb", "default", "1")
    for number in ("1:1", "1:2"):
        _on(host, "tc", "class", "add", *on, "parent", "1:", "classid", number, *fast)
    _on(host, "tc", "qdisc", "add", *on, "parent", "1:2", *_bucket(rate))
    where = ("u32", "match", "ip", "dst", f"{_address(other)}/32")
    _on(host, "tc", "filter", "add", *on, "parent", "1:", "protocol", "ip", *where, "flowid", "1:2")


@contextmanager
def lossy(host: Host, probability: float) -> Iterator[None]:
    """Loses that part of the packets which reach a host by the cable.

    Raises:
        OSError: there is no iptables.
        CalledProcessError: the kernel cannot.
    """
    rule = ("INPUT", "-i", CABLE, "-m", "statistic", "--mode", "random")
    rule += ("--probability", str(probability), "-j", "DROP")
    _on(host, "iptables", "-A", *rule)
    try:
        yield
    finally:
        _on(host, "iptables", "-D", *rule)


def unlimited(host: Host) -> None:
    """Undoes :func:`slow_link` and :func:`slow_pair`."""
    _on(host, "tc", "qdisc", "replace", "dev", CABLE, "root", "pfifo")
    _on(host, "tc", "qdisc", "del", "dev", CABLE, "root")


def _bucket(rate: str) -> tuple[str, ...]:
    return ("tbf", "rate", rate, "burst", "64kb", "latency", "200ms")


def _address(host: Host) -> str:
    names = [line.split() for line in (host.folder / "hosts").read_text().splitlines()]
    return next(address for address, name in names if name == host.name)


@contextmanager
def _apart(addresses: Mapping[str, str]) -> Iterator[tuple[Host, ...]]:
    """Hosts without a network, which know each other's addresses."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-hosts-")))
        names = "".join(f"{address} {name}\n" for name, address in addresses.items())
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        yield tuple(
            Host(name, stack.enter_context(_started(name, folder)), folder) for name in addresses
        )


def _up(hosts: Sequence[Host], addresses: Mapping[str, str]) -> None:
    for host in hosts:
        _on(host, "ip", "address", "add", f"{addresses[host.name]}/24", "dev", CABLE)
        _on(host, "ip", "link", "set", CABLE, "up")
    for host in hosts:
        # Up to a second goes by until the kernel says so, and MPIs pass over what is not up.
        while "UP" not in _on(host, "ip", "-brief", "link", "show", CABLE).split():
            time.sleep(0.02)


@contextmanager
def _started(name: str, folder: Path) -> Iterator[int]:
    parted = ("--net", "--uts", "--ipc", "--pid", "--mount-proc", "--fork", "--kill-child")
    daemon = (sys.executable, "-IS", PROGRAMS / "rshd.py", str(PORT))
    # It ends when its standard input does, so that a test that is killed leaves no host behind.
    process = subprocess.Popen(
        ["unshare", *parted, "sh", "-c", _INIT, "sh", name, folder / "hosts", *daemon],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_LOGIN,
    )
    assert process.stdin and process.stdout
    try:
        assert process.stdout.readline() == "ready\n", f"{name} did not come up"
        (init,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield int(init)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def launcher(
    on: Host,
    mpiexec: Path,
    rsh: Sequence[str] = MPICH_RSH,
    hosts: str = "node1:1,node2:1",
    before: str = "",
) -> Path:
    """An ``mpiexec`` that starts ranks on several hosts.

    Args:
        before: shell that its rsh runs first, with the host and the command among its words.
    """
    made = Path(tempfile.mkdtemp(dir=on.folder), "mpiexec")
    remote = made.with_name("rsh")
    ask = f"exec {sys.executable} -IS {PROGRAMS / 'rsh.py'} {PORT}"
    remote.write_text(f'#!/bin/sh\n{before}\n{ask} "$@"\n')
    made.write_text(f'#!/bin/sh\nexec {mpiexec} {" ".join(rsh)} {remote} -hosts {hosts} "$@"\n')
    for program in (made, remote):
        program.chmod(0o755)
    return made


def _on(host: Host, *words: str) -> str:
    # The network's namespace alone: `ip` must find the other host's process in this machine's /proc.
    command = ("nsenter", "--target", str(host.init), "--net", *words)
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _space(process: int, kind: str) -> str:
    return str(Path(f"/proc/{process}/ns/{kind}").readlink())
