"""The proof of a launch, as much of it as a validation keeps."""

from __future__ import annotations

from fairlead.perf.records.validation import Proved, RankSaw
from fairlead.proof.verdict import Proof


def of(proof: Proof) -> Proved:
    """What each rank saw, held against the plan."""
    return Proved(
        proof.planned_title,
        proof.planned_file,
        tuple(
            RankSaw(
                rank=p.rank,
                host=p.host,
                size=p.size,
                mpi_path=p.mpi_path,
                version=p.version,
                transport=p.transport,
                as_planned=p.size == proof.asked
                and p.mpi_count == 1
                and proof.mapped_as_planned(p),
            )
            for p in proof.ranks
        ),
    )
