"""A validation of a machine that there is not, drawn from a fixed seed: 8 nodes or more, and on demand a bad one."""

from __future__ import annotations

import dataclasses
import datetime
import math

import numpy as np

from fairlead.base.errors import Finding, Severity
from fairlead.ml.train.model import StepTimes
from fairlead.perf.judge.assess import proof_record
from fairlead.perf.judge.references import Kept, make
from fairlead.perf.judge.verdict import judge
from fairlead.perf.records.validation import (
    Bound,
    Bounds,
    Culprit,
    Evidence,
    Machine,
    Measurement,
    Proved,
    Shares,
    Validation,
    Way,
    What,
)
from fairlead.proof.verdict import Proof, RankProof

NODES, RANKS_A_NODE = 8, 8


def names(nodes: int) -> tuple[str, ...]:
    return tuple(f"nid{number:06d}" for number in range(1001, 1001 + nodes))


HOSTS = names(NODES)
BOUNDS = Bounds(
    link=Bound(12.5e9, "100 Gb/s card"),
    latency=Bound(1.6e-6, "vendor"),
    memory=Bound(180e9, "stream"),
)
SIZES = tuple(4**k for k in range(1, 15))  # 4 B to 268 MB


def demo(
    *,
    seed: int = 1,
    bad_node: int | None = 5,
    repeats: int = 12,
    nodes: int = NODES,
    upgraded: bool = False,
    steps: int = 200,
    references: dict[str, Kept] | None = None,
    id: str = "20260102T030405-demo",
) -> Validation:
    """
    Args:
        bad_node: its number; its ranks compute 1.5 times as long, and all wait for them.
        upgraded: another MPI, with which collectives take 1.25 times as long.
        references: lines that are held against these.
    """
    hosts, most = names(nodes), nodes * RANKS_A_NODE
    slower, mpi = (1.25, "CRAY MPICH 8.1.31") if upgraded else (1.0, "CRAY MPICH version 8.1.29.50")
    source = np.random.default_rng(seed)
    bad = 1.5 if bad_node is not None else 1.0

    def samples(value: float, spread: float = 0.03) -> tuple[float, ...]:
        drawn = value * (1 + np.abs(source.normal(0, spread, repeats)))
        drawn[source.random(repeats) < 0.04] *= 1.6
        return tuple(map(float, drawn))

    def rates(value: float) -> tuple[float, ...]:
        return tuple(1 / t for t in samples(1 / value))

    found: list[Measurement] = []
    for way, more in ((Way.NATIVE, 1.0), (Way.CONTAINER, 1.004)):
        for size in SIZES:
            value = (1.9e-6 + size / 11.4e9) * more * slower
            found.append(
                Measurement(What.PINGPONG, way, samples(value), 2, 2, size, launcher="srun")
            )
        for size in SIZES:
            moved = 2 * (nodes - 1) / nodes * size / 9.1e9
            value = (4 * 2.1e-6 + 3e-6 + moved + size * 6e-11) * more * slower
            found.append(
                Measurement(What.ALLREDUCE, way, samples(value), most, nodes, size, launcher="srun")
            )
        for ranks in (1 << power for power in range(most.bit_length())):
            used = max(1, ranks // RANKS_A_NODE)
            loss = 1 + 0.012 * math.log2(ranks) + 0.004 * math.log2(ranks) ** 1.5
            rate = 41.0 * ranks / loss / more / (bad if used > (bad_node or 0) else 1)
            found.append(Measurement(What.TRAIN, way, rates(rate), ranks, used, None, "resnet50", launcher="srun"))  # fmt: skip
        found.append(Measurement(What.INPUT, way, rates(310.0), most, nodes, None, "resnet50"))
        found.append(Measurement(What.CHECKPOINT, way, rates(1.9e9), most, nodes, 102_000_000))
    for phase, seconds in (("image mounted", 0.4), ("ranks begun", 1.9), ("MPI_Init", 1.2)):
        found.append(
            Measurement(What.START, Way.CONTAINER, samples(seconds), most, nodes, None, phase)
        )
    train = next(m.key for m in found if m.what is What.TRAIN and m.ranks == most and m.way is Way.CONTAINER)  # fmt: skip
    evidence = Evidence(
        cores=64,
        transports={"native": "ofi: cxi", "container": "ofi: cxi"},
        accepted=("cxi",),
        mpis={"native": mpi, "container": mpi},
        planned_mpi=mpi,
        shares={train: Shares(0.02, 0.36 if bad_node is not None else 0.05)},
        culprits=(
            (
                Culprit(
                    f"node {hosts[bad_node]}",
                    "a step takes its ranks 366 ms, the others 244",
                    1.5,
                    (hosts[bad_node],),
                    bad_node + 1,
                ),
            )
            if bad_node is not None
            else ()
        ),
        findings=(Finding(Severity.WARNING, "no huge pages", "", "", "", "other"),),
    )
    measurements = tuple(found)
    begun = datetime.datetime.strptime(id[:15], "%Y%m%dT%H%M%S").replace(tzinfo=datetime.UTC)
    return Validation(
        id=id,
        begun=begun.isoformat(),
        seconds=1843.0,
        command=f"fairlead validate -N {nodes} --ranks-per-node 8 --image tensorflow",
        machine=Machine(
            "demo",
            hosts,
            64,
            {
                "mpi": mpi,
                "image digest": "sha256:" + "3f9a" * 16,
                "lock sha256": "77c1" * 16,
                "kernel": "5.14.21-150500.55.49",
                "driver": "libcxi 1.0",
                "libfabric": "1.15.2.0",
                "fairlead": "0.1.0",
            },
        ),
        measurements=measurements,
        verdicts=judge(measurements, references or {}, BOUNDS, evidence),
        evidence=evidence,
        bounds=BOUNDS,
        steps=times(source, steps, bad_node, nodes),
        steps_of=train,
        proof=proof(mpi, nodes),
    )


def times(
    source: np.random.Generator, steps: int, bad_node: int | None, nodes: int = NODES
) -> tuple[StepTimes, ...]:
    """What one rank computes longer, all others wait for."""
    ranks, hosts = nodes * RANKS_A_NODE, names(nodes)
    shape = (ranks, steps)

    def drawn(ms: float, spread: float = 0.03) -> np.ndarray:
        return ms / 1000 * (1 + np.abs(source.normal(0, spread, shape)))

    forward, backward, update = drawn(74), drawn(151), drawn(9)
    reading = drawn(3, 0.6)
    reading[:, :: max(steps // 6, 1)] += 0.1  # a new file, for everybody
    if bad_node is not None:
        slow = slice(bad_node * RANKS_A_NODE, (bad_node + 1) * RANKS_A_NODE)
        for part in (forward, backward, update):
            part[slow] *= 1.5
    busy = forward + backward + update + reading
    parts = (reading, forward, backward, drawn(14, 0.2), update, busy.max(axis=0) - busy)
    return tuple(
        StepTimes(
            rank,
            hosts[rank // RANKS_A_NODE],
            *(tuple(map(float, part[rank].round(6))) for part in parts),
        )
        for rank in range(ranks)
    )


def proof(mpi: str, nodes: int = NODES) -> Proved:
    file, hosts, size = "/opt/fairlead/mpi/libmpi.so.12", names(nodes), nodes * RANKS_A_NODE
    ranks = tuple(
        RankProof(r, size, hosts[r // RANKS_A_NODE], file, 4711, 1, mpi, "ofi", ("cxi",), True, {})
        for r in range(size)
    )
    return proof_record(Proof(size, file, 4711, mpi, ranks, (), 2.4))


def kept() -> dict[str, Kept]:
    """References of a day on which all was well."""
    well = demo(seed=7, bad_node=None, steps=2, id="20251201T000000-demo")
    return make(well).by_key


def with_verdicts(validation: Validation, references: dict[str, Kept] | None = None) -> Validation:
    """The same, judged anew."""
    found = judge(validation.measurements, references or {}, BOUNDS, validation.evidence)
    return dataclasses.replace(validation, verdicts=found)
