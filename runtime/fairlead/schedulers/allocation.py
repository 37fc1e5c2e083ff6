"""The nodes that a scheduler has given to this shell, from the variables and files that it sets.

Sources: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; qsub(1B) of OpenPBS ($PBS_NODEFILE: a line a slot); bsub(1),
"Environment variables" ($LSB_DJOB_HOSTFILE: a line a slot, the launch node first under CSM); flux-environment(7);
ALCF's "Running Jobs on XC40" ($COBALT_NODEFILE: a line a node).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Allocation:
    """What this shell may use; 0 and empty where the scheduler does not say.

    Attributes:
        scheduler: its kind, as in a site profile.
        job: its identifier.
        nodes: how many.
        hosts: their names.
        slots: cores, or places for ranks, of all nodes together.
        by: the variable that tells of it.
    """

    scheduler: str
    job: str
    nodes: int = 0
    hosts: tuple[str, ...] = ()
    slots: int = 0
    by: str = ""

    @property
    def title(self) -> str:
        """In words."""
        size = [f"{self.nodes} nodes"] if self.nodes else []
        size += [f"{self.slots} slots"] if self.slots else []
        return f"{self.scheduler} job {self.job}" + (f" ({', '.join(size)})" if size else "")


def find(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation of this shell; None outside of any. Reads at most one small file."""
    for read in (_slurm, _cobalt, _pbs, _lsf, _flux):
        if found := read(environ):
            return found
    return None


def _slurm(environ: Mapping[str, str]) -> Allocation | None:
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    if not job:
        return None
    names = environ.get("SLURM_JOB_NODELIST", "")
    hosts = expand(names)
    cpus = sum(counts(environ.get("SLURM_JOB_CPUS_PER_NODE", "")))
    count = environ.get("SLURM_JOB_NUM_NODES", "")
    nodes = int(count) if count.isdigit() else len(hosts)
    return Allocation("slurm", job, nodes, hosts, cpus, "SLURM_JOB_ID")


def _pbs(environ: Mapping[str, str]) -> Allocation | None:
    file = environ.get("PBS_NODEFILE")
    if not file:
        return None
    lines = _lines(file)
    hosts = tuple(dict.fromkeys(lines))
    # Without mpiprocs a chunk has one line, however many cores it has: then slots are not known.
    slots = len(lines) if len(lines) > len(hosts) else 0
    job = environ.get("PBS_JOBID", "")
    return Allocation("pbs", job, len(hosts), hosts, slots, "PBS_NODEFILE")


def _cobalt(environ: Mapping[str, str]) -> Allocation | None:
    job = environ.get("COBALT_JOBID")
    if not job:
        return None
    hosts = tuple(dict.fromkeys(_lines(environ.get("COBALT_NODEFILE", ""))))
    size = environ.get("COBALT_JOBSIZE", "")
    nodes = int(size) if size.isdigit() else len(hosts)
    return Allocation("cobalt", job, nodes, hosts, 0, "COBALT_JOBID")


def _lsf(environ: Mapping[str, str]) -> Allocation | None:
    job = environ.get("LSB_JOBID")
    if not job:
        return None
    slots = _lines(environ.get("LSB_DJOB_HOSTFILE", "")) or environ.get("LSB_HOSTS", "").split()
    if not slots:
        words = environ.get("LSB_MCPU_HOSTS", "").split()
        pairs = zip(words[::2], words[1::2], strict=False)
        slots = [host for host, n in pairs for _ in range(int(n) if n.isdigit() else 0)]
    hosts = list(dict.fromkeys(slots))
    if len(hosts) > 1 and slots.count(hosts[0]) == 1 and slots.count(hosts[1]) > 1:
        # Under CSM the first line is the node that the script runs on, which has no ranks.
        slots, hosts = slots[1:], hosts[1:]
    return Allocation("lsf", job, len(hosts), tuple(hosts), len(slots), "LSB_JOBID")


def _flux(environ: Mapping[str, str]) -> Allocation | None:
    if "FLUX_URI" not in environ:
        return None
    size = environ.get("FLUX_JOB_NNODES", "")
    nodes = int(size) if size.isdigit() else 0
    return Allocation("flux", environ.get("FLUX_JOB_ID", "here"), nodes, by="FLUX_URI")


def _lines(path: str) -> list[str]:
    with suppress(OSError):
        return [line.split()[0] for line in Path(path).read_text().splitlines() if line.strip()]
    return []


def counts(text: str) -> tuple[int, ...]:
    """What SLURM_JOB_CPUS_PER_NODE says, a number a node.

    >>> counts("72(x2),36")
    (72, 72, 36)
    """
    found: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        found += [int(number)] * int(times or 1)
    return tuple(found)


def expand(names: str) -> tuple[str, ...]:
    """A list of hosts as Slurm writes it, name by name: ``scontrol show hostnames`` without Slurm.

    >>> expand("nid[0008-0010,12],login1,r[1-2]c[3,4]-x")
    ('nid0008', 'nid0009', 'nid0010', 'nid12', 'login1', 'r1c3-x', 'r1c4-x', 'r2c3-x', 'r2c4-x')
    """
    found: list[str] = []
    for word in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        made = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", word):
            ends = [plain] if plain else list(_numbers(ranges))
            made = [before + end for before in made for end in ends]
        found += made
    return tuple(found)


def _numbers(ranges: str) -> list[str]:
    found = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if dash and first.isdigit() and last.isdigit():
            found += [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
        else:
            found.append(part)
    return found
