"""From what the user asks for to a shape that can be: what contradicts itself, or the allocation, is reported.

All mistakes come in one message, each with what to type instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, fail
from fairlead.launchers.model import Shape
from fairlead.schedulers.model import Allocation

# srun's and mpirun's own words for more ranks than there are cores.
_CROWDED = ("--overcommit", "-O", "--oversubscribe", "--map-by=:OVERSUBSCRIBE")

# Ranks a core that a user may mean on a private machine. What was meant for a job is far beyond, and takes
# this machine's memory and processes before it fails.
_MOST_A_CORE = 64
# By which mpiexec finds other machines than this one.
_HOST_FILES = (
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
)


@dataclass(frozen=True)
class Asked:
    """What the options say; None and empty where they say nothing.

    Attributes:
        spares: nodes of a new job that the ranks do not need.
        outlives: a new job is to go on when one of its nodes fails.
    """

    nodes: int | None = None
    per_node: int | None = None
    cores: int | None = None
    gpus: int | None = None
    bind: str = ""
    hosts: tuple[str, ...] = ()
    time: str = ""
    account: str = ""
    partition: str = ""
    extra: tuple[str, ...] = ()
    ranks: int | None = None
    spares: int = 0
    outlives: bool = False

    @property
    def of_scheduler(self) -> tuple[str, ...]:
        """The options given that only a scheduler can answer."""
        options = (
            ("--time", self.time),
            ("--account", self.account),
            ("--partition", self.partition),
        )
        return tuple(option for option, value in options if value)


def shape(asked: Asked, allocation: Allocation | None = None) -> Shape:
    """The requested shape.

    Args:
        allocation: what it must fit in; None where there is none yet.
    Raises:
        FairleadError: exit code 2; it contradicts itself or does not fit.
    """
    wrong: list[Finding] = []
    named = max(len(asked.hosts) - asked.spares, 0)
    nodes = asked.nodes or named
    if asked.nodes and asked.hosts and asked.nodes != named:
        wrong.append(error("shape-nodes-contradict-hosts", nodes=asked.nodes, hosts_count=named))
    ranks = asked.ranks
    if ranks is None:
        ranks = (nodes or 1) * asked.per_node if asked.per_node else nodes or 1
    per_node = asked.per_node or 0
    if per_node and not nodes:
        nodes = math.ceil(ranks / per_node)
    if nodes > ranks:
        wrong.append(error("shape-fewer-ranks-than-nodes", ranks=ranks, nodes=nodes))
    elif per_node and not (nodes - 1) * per_node < ranks <= nodes * per_node:
        fits = f"{nodes} nodes of {per_node} ranks hold {nodes * per_node}"
        wrong.append(
            error("shape-ranks-contradict", fits=fits, ranks=ranks, nodes=nodes * per_node)
        )
    try:
        time_s = seconds(asked.time) if asked.time else 0
    except ValueError as exc:
        time_s = 0
        wrong.append(error("shape-time", time=asked.time, reason=exc))
    made = Shape(
        ranks, nodes, per_node, asked.cores or 0, asked.gpus or 0, asked.bind, asked.hosts, time_s,
        asked.account, asked.partition, asked.extra,
    )  # fmt: skip
    if allocation:
        wrong += _misfits(asked, made, allocation)
    if wrong:
        raise FairleadError(wrong, ExitCode.USAGE)
    return made


def with_spares(made: Shape, spares: int) -> Shape:
    """A job of nodes that the ranks do not need, each with room for as many ranks as the others have.

    Raises:
        FairleadError: exit code 2; the number of nodes is open.
    """
    if not spares:
        return made
    if not made.nodes:
        raise fail("shape-spares-without-nodes", spares=spares)
    ranks = made.ranks + spares * made.each
    return replace(made, ranks=ranks, nodes=made.nodes + spares)


def on_this_machine(made: Shape, cores: int, environ: Mapping[str, str]) -> None:
    """Whether it can be meant, where no job and no other machine is in play.

    Raises:
        FairleadError: exit code 2; far more ranks than cores.
    """
    most = _MOST_A_CORE * cores
    if made.ranks <= most or made.hosts or any(map(environ.get, _HOST_FILES)):
        return
    core = "core" if cores == 1 else "cores"
    raise fail("shape-ranks-exceed-cores", made=made, cores=cores, core=core, most=most)


def nodes_of(made: Shape, allocation: Allocation | None, environ: Mapping[str, str]) -> int:
    """On how many nodes the ranks run; 0 where only the launcher knows."""
    if known := made.filled or made.nodes:
        return known
    if allocation and allocation.nodes:
        return min(allocation.nodes, made.ranks)
    return 0 if allocation or any(map(environ.get, _HOST_FILES)) else 1


def _misfits(asked: Asked, made: Shape, allocation: Allocation) -> list[Finding]:
    wrong = []
    if asked.of_scheduler:
        options = " and ".join(asked.of_scheduler)
        wrong.append(error("shape-job-in-job", of_scheduler=options, allocation=allocation))
    if allocation.nodes and made.nodes > allocation.nodes:
        wrong.append(error("shape-too-many-nodes", made=made, allocation=allocation))
    outside = [h for h in made.hosts if allocation.hosts and h not in allocation.hosts]
    if outside:
        strangers, hosts = ", ".join(outside[:4]), ", ".join(allocation.hosts[:8])
        wrong.append(
            error(
                "shape-hosts-outside-job", strangers=strangers, allocation=allocation, hosts=hosts
            )
        )
    need = made.ranks * max(made.cores, 1)
    if allocation.slots and need > allocation.slots and not set(_CROWDED) & set(made.extra):
        cores = f" of {made.cores} cores each" if made.cores > 1 else ""
        most = max(allocation.slots // max(made.cores, 1), 1)
        wrong.append(
            error(
                "shape-ranks-exceed-slots",
                made=made,
                cores=cores,
                need=need,
                allocation=allocation,
                most=most,
            )
        )
    return wrong


def seconds(text: str) -> int:
    """A length of time in seconds.

    Raises:
        ValueError: it is none; a bare number is minutes to one scheduler and seconds to another.

    >>> seconds("1-02:00:00"), seconds("1:30:00"), seconds("90m"), seconds("2h")
    (93600, 5400, 5400, 7200)
    """
    if match := re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", text):
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        total = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    elif match := re.fullmatch(r"(\d+)([smhd])", text):
        total = int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    elif text.isdigit():
        raise ValueError("a bare number is minutes to Slurm and seconds to PBS")
    else:
        raise ValueError("not a valid duration")
    if not total:
        raise ValueError("no time at all")
    return total
