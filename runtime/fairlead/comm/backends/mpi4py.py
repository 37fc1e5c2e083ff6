"""mpi4py: the reference, on which the native core is not needed.

The collectives themselves are in :mod:`fairlead.comm.core`, over :class:`fairlead.comm.mpi.Mpi4py`.
"""

from __future__ import annotations

from fairlead.base.comm_backend import Availability, CommBackend, CommFacts


def _available(facts: CommFacts) -> Availability:
    present = facts.has_module("/mpi4py/")
    return Availability(present, "" if present else "the image has no mpi4py")


_SUMMARY = "the reference, one Allreduce of one buffer"
BACKENDS = (
    CommBackend(
        name="mpi4py",
        summary=_SUMMARY,
        available=_available,
        connect=None,
        provided_by="add mpi4py to [packages] pip of the image's recipe",
        not_chosen="slower than the core: the reference",
        priority=10,
        why_chosen=lambda facts: f"{_SUMMARY}; the core is not available: {facts.no_core}",
        ordered=True,
        automatic=True,
        position=2,
    ),
)
