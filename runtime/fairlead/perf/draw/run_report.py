"""What a report holds, as plain frozen values; ``report.json`` is exactly this."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.base.errors import Finding
from fairlead.ml.train.result import TrainResult


@dataclass(frozen=True)
class ProofRow:
    """What one rank saw of its MPI.

    Attributes:
        size: of the world this rank is in.
        mpi_path: the one MPI library mapped into it.
        mpi_version: first line of ``MPI_Get_library_version``.
        inode: of that file.
        planned_ok: the mapped file is the planned one.
        compared: by what: ``path and inode``, or ``path`` for the image's own MPI.
        mpi_count: MPI libraries mapped into it.
    """

    rank: int
    host: str
    size: int
    mpi_path: str
    mpi_version: str
    transport: str
    inode: int
    planned_ok: bool
    compared: str
    mpi_count: int


@dataclass(frozen=True)
class PlanRow:
    """One thing that the launch changes in the image.

    Attributes:
        kind: ``library``, ``alias``, ``bind`` or ``variable``.
        inside: what the image has or sees, e.g. ``/opt/mpich/lib/libmpi.so.12 (MPICH 3.4.3)``.
        outside: what it gets from the host.
        why: why that is needed, or allowed.
    """

    kind: str
    inside: str
    outside: str
    why: str


@dataclass(frozen=True)
class Fact:
    """A name and a value, for the tables of environment and digests."""

    name: str
    value: str


@dataclass(frozen=True)
class Report:
    """One run.

    Attributes:
        title: e.g. ``HEP-CNN in tensorflow on 2 ranks``.
        created: ISO 8601 with time zone.
        ranks: how many were asked for.
        repeat: commands that repeat the run.
        findings: of every stage; an error makes the verdict a failure.
        training: None when nothing was trained.
    """

    title: str
    created: str
    ranks: int
    repeat: tuple[str, ...]
    proof: tuple[ProofRow, ...]
    plan: tuple[PlanRow, ...]
    environment: tuple[Fact, ...]
    digests: tuple[Fact, ...]
    findings: tuple[Finding, ...] = ()
    training: TrainResult | None = None
