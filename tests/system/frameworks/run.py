"""Frameworks that never call MPI, under every launcher that can be started here, on one host and on two.

    $ python -m tests.system.frameworks.run [--only REGEX]

Each cell trains with :file:`tests/system/programs/worlds.py`, and is judged by what the ranks print: N numbers of a world
of N, and the same weights on all. The cells are kept in ``tests/recorded/frameworks/cells.json``; ``python -m
tools.frameworks_page`` makes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.system import hosts, netns, slurm
from tests.system.netns import Host

from fairlead.base.paths import atomic_write

KEPT = hosts.ROOT / "tests/recorded/frameworks/cells.json"
PEERS = KEPT.with_name("peers.json")
PROGRAM = hosts.PROGRAMS / "worlds.py"
CLUSTER = hosts.ROOT / "examples/ray_cluster.py"
TRAINERS = str(hosts.ROOT / "examples/trainers")


@dataclass(frozen=True)
class Framework:
    """What is run.

    Attributes:
        image: a recipe.
        words: what runs the program on each rank.
        agents: one rank a node starts the processes there.
        script: of the program, where it is not the framework's own.
        limit_s: for a cell; DeepSpeed compiles for minutes where it was not used before.
    """

    title: str
    image: str = "pytorch"
    words: tuple[str, ...] = ("python3",)
    agents: bool = False
    script: str = ""
    limit_s: int = 180


FRAMEWORKS = {
    "ddp": Framework("PyTorch 2.13, DistributedDataParallel"),
    "fsdp": Framework("PyTorch 2.13, FSDP2"),
    "torchrun": Framework(
        "torchrun of PyTorch 2.13",
        words=("torchrun", "--nproc-per-node", "2"),
        agents=True,
        script="ddp",
    ),
    "accelerate": Framework("Accelerate 1.15", TRAINERS),
    "lightning": Framework("Lightning 2.6", TRAINERS),
    "trainer": Framework("Trainer of transformers 5.23", TRAINERS),
    "deepspeed": Framework("DeepSpeed 0.19, ZeRO 1", TRAINERS, limit_s=600),
    "ray": Framework(
        "Ray Train 2.60", TRAINERS, ("python3", str(CLUSTER)), agents=True, limit_s=300
    ),
    "jax": Framework("JAX 0.10", "jax"),
    "multiworker": Framework("TensorFlow 2.21, MultiWorkerMirroredStrategy", "tensorflow"),
}
LAUNCHERS = {
    "hydra": "mpiexec of MPICH 5.0.2",
    "intel": "mpiexec of Intel MPI 2021.18",
    "openmpi": "mpiexec of Open MPI 5.0.11",
    "srun-pmi2": "srun of Slurm 22.05, PMI-2",
    "srun-pmix": "srun of Slurm 22.05, PMIx",
}


@dataclass(frozen=True)
class Cell:
    """What was run, and how it ended.

    Attributes:
        nodes: hosts, with one rank each; one host has two ranks, or one torchrun.
        wrong: empty where there was one world of the right size, with equal weights.
    """

    framework: str
    launcher: str
    nodes: int
    code: int
    wrong: str

    @property
    def name(self) -> str:
        return f"{self.framework}/{self.launcher}/{self.nodes}"


@dataclass(frozen=True)
class Peer:
    """An example of a framework's own project, and how it ended; run by hand, outside of this checkout.

    Attributes:
        name: its path in the repository.
        changed: in the file, or around it.
    """

    name: str
    repository: str
    commit: str
    changed: str
    launcher: str
    outcome: str


def peers() -> list[Peer]:
    return [Peer(**kept) for kept in json.loads(PEERS.read_text())]


def names() -> list[str]:
    return [f"{f}/{launcher}/{n}" for n in (1, 2) for launcher in LAUNCHERS for f in FRAMEWORKS]


class Machine:
    """Two hosts, and a Slurm over them."""

    def __init__(self, stack: ExitStack):
        self.one, self.two = stack.enter_context(netns.two_hosts())
        where = {
            node: (netns.ADDRESSES[host.name], ("nsenter", "--target", str(host.init), "--net", "--"))
            for node, host in zip(slurm.NODES, (self.one, self.one, self.two, self.two), strict=True)
        }  # fmt: skip
        self.cluster = stack.enter_context(
            slurm.slurm(where["n1"][1], netns.ADDRESSES["node1"], where)
        )

    def run(self, name: str) -> Cell:
        """Runs one cell."""
        key, launcher, count = name.split("/")
        framework, nodes = FRAMEWORKS[key], int(count)
        ranks = nodes if framework.agents else 2
        size = 2 * nodes if key == "torchrun" else 2
        words: list[str | Path] = ["run", "-n", str(ranks), "--json", "--mpi", _mpi(launcher), "-B", hosts.PROGRAMS]  # fmt: skip
        words += ["--watchdog", str(framework.limit_s // 3)]
        if launcher.startswith("srun"):
            words += ["-N", count, "--hosts", "n2,n3" if nodes > 1 else "n2"]
            words += [f"--launcher-arg=--mpi={launcher.removeprefix('srun-')}"]
        else:
            words += ["--launcher", _mpiexec(self.one, launcher, nodes, ranks)]
        words += ["-B", CLUSTER.parent, hosts.image(framework.image), "--"]
        words += [*framework.words, PROGRAM, framework.script or key]
        try:
            if launcher.startswith("srun"):
                done = self.cluster.fairlead(*words, limit_s=framework.limit_s)
            else:
                done = self.one.fairlead(
                    *words, env={**os.environ, **hosts.AS_ROOT}, limit_s=framework.limit_s
                )
        except subprocess.TimeoutExpired:
            return Cell(key, launcher, nodes, -1, "no end within its limit")
        return Cell(key, launcher, nodes, done.returncode, _wrong(done, size))


def _mpi(launcher: str) -> Path:
    """The MPI that a launcher connects: mpi4py in the images has a module for each family."""
    if launcher in ("openmpi", "srun-pmix"):
        return hosts.openmpi()
    return hosts.intel() if launcher == "intel" else hosts.mpich()


def _mpiexec(on: Host, kind: str, nodes: int, ranks: int) -> Path:
    """A launcher that starts ranks on one of the hosts, or on both."""
    each = ranks // nodes
    where = f"node1:{each},node2:{each}" if nodes > 1 else f"node1:{each}"
    if kind == "hydra":
        return netns.launcher(on, hosts.mpich() / "bin/mpiexec.hydra", hosts=where)
    if kind == "intel":
        rsh = ("-ppn", str(each), "-bootstrap", "rsh", "-bootstrap-exec")
        names = re.sub(r":\d+", "", where)
        return netns.launcher(on, hosts.intel() / "bin/mpiexec.hydra", rsh, hosts=names)
    made = netns.launcher(on, hosts.openmpi() / "bin/mpiexec")
    remote = made.with_name("rsh")
    made.write_text(
        f"#!/bin/sh\nexec {hosts.openmpi() / 'bin/mpiexec'} --prtemca plm_ssh_agent {remote} --host {where} "
        f'--map-by :OVERSUBSCRIBE "$@"\n'
    )
    return made


def _wrong(done: subprocess.CompletedProcess[str], size: int) -> str:
    if done.returncode:
        errors = re.findall(r'"what": "(.+?)",', done.stdout)
        return f"exit {done.returncode}: {errors[0] if errors else done.stderr[-200:]}"
    found = dict(re.findall(rf"^(\d+) of {size}: (\w+)$", done.stderr, re.MULTILINE))
    if sorted(map(int, found)) != list(range(size)):
        return f"the ranks {sorted(found)} of {size} have reported"
    if len(set(found.values())) > 1:
        return "the weights differ"
    said = json.loads(done.stdout)["worlds"]
    return "" if said and said[0]["size"] == size else "no world was proved"


@contextmanager
def machine() -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(stack)


def read(path: Path = KEPT) -> tuple[list[Cell], dict[str, object]]:
    """The kept cells, and where they were made."""
    kept = json.loads(path.read_text())
    return [Cell(**cell) for cell in kept["cells"]], kept["machine"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    wanted = parser.parse_args().only
    before = {cell.name: cell for cell in read()[0]} if KEPT.exists() else {}
    with machine() as made:
        for name in names():
            if re.search(wanted, name):
                cell = before[name] = made.run(name)
                print(f"{name}: {cell.wrong or 'one world'}", flush=True)
    place = {"system": platform.freedesktop_os_release()["PRETTY_NAME"], "cores": os.cpu_count()}
    cells = [asdict(before[name]) for name in names() if name in before]
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(KEPT, "w") as out:
        json.dump({"machine": place, "cells": cells}, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
