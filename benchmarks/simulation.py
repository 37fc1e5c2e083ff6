"""The core's sums between nodes on machines that are not at hand, by SimGrid: the same C++, one simulated rank a node.

Machines are described by published figures; what no source gives is marked as assumed. SimGrid routes each pair of nodes
by one shortest path, where these networks spread traffic over many: links within a dragonfly's group are as wide as what
its switches can spread over all of them, so only injection and links between groups limit.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fairlead.base.paths import atomic_write, cache_dir
from fairlead.native import core_folder

PROGRAM = Path(__file__).parent / "programs" / "network_smpi.cpp"
_SOURCES = ("network", "choice", "kernels")
_HEADERS = ("network.h", "choice.h", "kernels.h", "kernels_for.inc", "platform.h")
# No threads, no pages for stacks that are not used, factors of 1 where SimGrid has those of an old TCP cluster.
_OPTIONS = (
    "smpi/simulate-computation:no", "smpi/privatization:no", "smpi/host-speed:1Gf", "smpi/cpu-threshold:0",
    "smpi/bw-factor:0:1", "smpi/lat-factor:0:1", "smpi/send-is-detached-thresh:0", "smpi/async-small-thresh:0",
    "network/model:SMPI", "network/TCP-gamma:0", "network/crosstraffic:0", "contexts/stack-size:1024",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """A simulated machine.

    Attributes:
        topology, parameters: as SimGrid's ``cluster`` takes them.
        nodes: that it has; the first ones are used.
        bandwidth: bytes a second of a node's link, one way.
        hop_s: latency of a link and the switch at its end.
        overhead_s: of a message, in the sender and in the receiver.
        near: nodes of a switch or router.
        source: of each figure.
    """

    name: str
    topology: str
    parameters: str
    nodes: int
    bandwidth: float
    hop_s: float
    overhead_s: float
    near: int
    source: str


ARIES = Machine(
    # 22 groups of 96 routers of 4 nodes; SimGrid needs as many routers a chassis as there are groups
    "aries", "DRAGONFLY", "22,9;3,16;32,4;4", 22 * 384, 8e9, 1e-7, 0.55e-6, 4,
    "Cori: about 8 GB/s and 0.25 to 3.7 us by MPI (NERSC, Cori configuration); 1.3 us to a near node (sitecfg/piz-daint.toml);"
    " 4 nodes a router, 96 routers a group, 15 + 15 links of 14 and 10 of 12.5 Gbit/s a lane (B. Alverson et al., Cray XC"
    " Series Network, 2012; NeSI, XC50 Aries Network Architecture); 100 ns a router, and half of the optical links in use:"
    " assumed",
)  # fmt: skip
SLINGSHOT = Machine(
    "slingshot", "DRAGONFLY", "16,4;1,1;32,16;16", 16 * 512, 24e9, 2e-7, 0.95e-6, 16,
    "16 endpoints, 31 links within and 4 links to each other group a switch or group of 32 (Frontier: G. Lockwood, after OLCF"
    " and HPE); 24 GB/s and 2.3 us by MPI (sitecfg/alps.toml); 350 ns a switch (D. De Sensi et al., SC20). A node here is an"
    " endpoint: machines have 1 to 8 a node",
)  # fmt: skip
FAT_TREE = Machine(
    "fat-tree", "FAT_TREE", "2;18,456;1,18;1,1", 18 * 456, 25e9, 0.9e-7, 0.9e-6, 18,
    "Summit: non-blocking, two lines of EDR a node, Switch-IB 2 (C. Zimmer et al., SC19; C. Stunkel et al., IBM J. Res. Dev."
    " 64, 2020); 18 nodes a switch; 90 ns a switch and 2 us by MPI: assumed",
)  # fmt: skip
MACHINES = {one.name: one for one in (ARIES, SLINGSHOT, FAT_TREE)}


def cable(bandwidth: float, latency_s: float) -> Machine:
    """Two hosts and a cable."""
    return Machine(
        "cable", "FAT_TREE", "1;2;1;1", 2, bandwidth, latency_s / 2, 0.0, 1, "this machine"
    )


@dataclass(frozen=True)
class Job:
    """One simulation.

    Attributes:
        group: of the algorithm ``groups``.
        size: bytes.
        pieces: that are summed in turn, four under way at once.
        steps: of training; 0, the sum alone.
        compute_s, deviation: of a step, lognormal; those of the slowest of ``ranks`` of a node.
        delayed: each step sums what the one before has computed.
    """

    algorithm: str
    size: float
    pieces: int = 1
    group: int = 0
    steps: int = 0
    compute_s: float = 0.0
    deviation: float = 0.0
    delayed: bool = False
    ranks: int = 1

    def words(self) -> str:
        parts = [self.algorithm, self.group, f"{self.size:.0f}", self.pieces]
        if self.steps:
            parts += [self.steps, self.compute_s, self.deviation, int(self.delayed), self.ranks]
        return ":".join(map(str, parts))


_COMPILING = threading.Lock()


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fairlead-smpi-")


def _sources() -> list[Path]:
    folder = core_folder() / "src"
    return [PROGRAM, *(folder / f"{name}.cpp" for name in _SOURCES)]


@cache
def _state() -> str:
    """Of what is simulated."""
    files = [*_sources(), *(core_folder() / "src" / name for name in _HEADERS)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@cache
def program() -> Path:
    """The simulated program, compiled by SimGrid's compiler.

    Raises:
        FileNotFoundError: there is no SimGrid (Debian: libsimgrid-dev).
    """
    made = Path(_folder().name) / "network_smpi"
    core = core_folder()
    includes = ("-I", str(core / "src"), "-I", str(core / "include"))
    words = ("smpicxx", "-std=c++17", "-O2", "-w", "-ffp-contract=off", *includes)
    subprocess.run([*words, *map(str, _sources()), "-o", str(made)], check=True)
    return made


def simulate(
    machine: Machine, nodes: int, jobs: Sequence[Job], scale: float = 1, limit_s: float = 7200
) -> list[dict[str, Any]]:
    """The simulated seconds of each job, and how many of its sums are wrong.

    The same simulation gives the same seconds: answers are kept, so that a long benchmark can be continued.

    Args:
        scale: sums are of so many times fewer bytes over links so many times slower, which takes as long.
    """
    identity = repr((_state(), _OPTIONS, _platform(machine, scale), machine, nodes, tuple(jobs)))
    name = hashlib.sha256(identity.encode()).hexdigest()[:24]
    kept = cache_dir() / "simulations" / f"{name}.json"
    if kept.is_file():
        answers: list[dict[str, Any]] = json.loads(kept.read_text())
        return answers
    with _COMPILING:
        made = program()
    folder = Path(_folder().name)
    platform, hosts = folder / f"{name}.xml", folder / f"{name}.hosts"
    platform.write_text(_platform(machine, scale))
    hosts.write_text("".join(f"n{i}\n" for i in range(nodes)))
    words = ["smpirun", "-quiet", "-np", str(nodes), "-platform", str(platform)]
    words += ["-hostfile", str(hosts), "--log=root.thres:error"]
    words += [f"--cfg={option}" for option in _OPTIONS]
    words += [str(made), f"{scale:g}", f"{machine.overhead_s:g}", *(job.words() for job in jobs)]
    ran = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    answers = [line for line in lines if "wrong" in line]
    if ran.returncode or len(answers) != len(jobs):
        raise RuntimeError(f"{machine.name}, {nodes} nodes: {ran.stdout[-300:]}{ran.stderr[-300:]}")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(kept, "w") as stream:
        json.dump(answers, stream)
    return answers


def flat(bandwidth: float, latency_s: float, nodes: int) -> Machine:
    """A switch that no traffic fills."""
    return replace(
        cable(bandwidth, latency_s), name="flat", parameters=f"1;{nodes};1;1", nodes=nodes
    )


def _platform(machine: Machine, scale: float) -> str:
    return (
        '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
        f'<platform version="4.1"><cluster id="c" prefix="n" suffix="" radical="0-{machine.nodes - 1}" speed="1Gf"'
        f' bw="{machine.bandwidth / scale}Bps" lat="{machine.hop_s}s" topology="{machine.topology}"'
        f' topo_parameters="{machine.parameters}" sharing_policy="SPLITDUPLEX"/></platform>\n'
    )
