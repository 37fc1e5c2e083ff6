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
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.system import hosts, netns, slurm
from tests.system.netns import Host

from fairlead.base.paths import atomic_folder, atomic_write, locked

KEPT = hosts.ROOT / "tests/recorded/frameworks/cells.json"
PROGRAM = hosts.PROGRAMS / "worlds.py"
# Without their dependencies: PyPI's torch would come in place of the image's.
PACKAGES = (
    "accelerate==1.15.0", "aiohttp==3.14.5", "annotated-types==0.8.0", "anyio==4.16.0", "certifi==2026.10.18",
    "charset-normalizer==3.5.2", "click==8.5.1", "filelock==4.2.12", "fsspec==2026.9.0", "h11==0.16.0", "hf-xet==1.8.0",
    "httpcore2==2.16.2", "httpx2==2.16.2", "huggingface_hub==2.4.0", "idna==3.20", "lightning==2.6.6",
    "lightning-utilities==0.15.3", "packaging==26.3", "psutil==7.2.2", "PyYAML==6.0.3", "regex==2026.11.15",
    "requests==2.34.2", "safetensors==0.8.0", "shellingham==1.5.4", "sniffio==1.3.1", "tokenizers==0.23.3",
    "torchmetrics==1.9.0", "pytorch-lightning==2.6.6", "tqdm==4.70.1", "transformers==5.23.0", "truststore==0.10.5",
    "typer-slim==0.24.0", "typing_extensions==4.16.0", "urllib3==2.8.0",
)  # fmt: skip


@dataclass(frozen=True)
class Framework:
    """What is run: its image, and whether it needs :data:`PACKAGES`."""

    title: str
    image: str = "pytorch"
    packages: bool = False
    words: tuple[str, ...] = ("python3",)


FRAMEWORKS = {
    "ddp": Framework("PyTorch 2.13, DistributedDataParallel"),
    "fsdp": Framework("PyTorch 2.13, FSDP2"),
    "torchrun": Framework("torchrun of PyTorch 2.13", words=("torchrun", "--nproc-per-node", "2")),
    "accelerate": Framework("Accelerate 1.15", packages=True),
    "lightning": Framework("Lightning 2.6", packages=True),
    "trainer": Framework("Trainer of transformers 5.23", packages=True),
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
        agents = framework.words[0] == "torchrun"
        ranks = nodes if agents else 2
        words: list[str | Path] = ["run", "-n", str(ranks), "--json", "--mpi", _mpi(launcher), "-B", hosts.PROGRAMS]  # fmt: skip
        words += ["--watchdog", "60"]
        if framework.packages:
            words += ["-B", packages(), "--env", f"PYTHONPATH={packages()}"]
        if launcher.startswith("srun"):
            words += ["-N", count, "--hosts", "n2,n3" if nodes > 1 else "n2"]
            words += [f"--launcher-arg=--mpi={launcher.removeprefix('srun-')}"]
        else:
            words += ["--launcher", _mpiexec(self.one, launcher, nodes, ranks)]
        script = "ddp" if agents else key
        words += [hosts.image(framework.image), "--", *framework.words, PROGRAM, script]
        try:
            if launcher.startswith("srun"):
                done = self.cluster.fairlead(*words)
            else:
                done = self.one.fairlead(*words, env={**os.environ, **hosts.AS_ROOT}, limit_s=180)
        except subprocess.TimeoutExpired:
            return Cell(key, launcher, nodes, -1, "no end within its limit")
        return Cell(key, launcher, nodes, done.returncode, _wrong(done, 2 * nodes if agents else 2))


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


def packages() -> Path:
    """Lightning and others from PyPI, without torch; made once."""
    folder = hosts.KEPT / "frameworks"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
            with atomic_folder(folder) as made:
                subprocess.run([*pip, made, *PACKAGES], check=True)
    return folder


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
