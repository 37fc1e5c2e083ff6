"""The verdict on processes that have not proved anything, by what they had mapped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from fairlead.base.errors import Finding, error, warning
from fairlead.proof.observe import Sighting
from fairlead.proof.verdict import RankProof, kept_by_remedy, why_kept
from fairlead.swap.model import Plan

_COMMAND = 280  # characters


@dataclass(frozen=True)
class Unproved:
    """What is known of the processes of a launch that have not proved anything.

    Attributes:
        sightings: the processes that had an MPI.
        blind: the ranks that were launched, and in which no process has loaded the witness.
    """

    plan: Plan
    sightings: tuple[Sighting, ...] = ()
    blind: tuple[str, ...] = ()

    def failed(self, proved: bool = False) -> Finding | None:
        """The error on a process with another MPI than the planned one; None when there was none.

        Args:
            proved: other processes of the launch have proved it. Then a tool may map an MPI that it does not start.
        """
        wrong = [s for s in self.sightings if s.wrong and (s.ran or not proved)]
        if not wrong:
            return None
        # One that was looked at shows more; among the others, those with another MPI come first.
        first = min(wrong, key=lambda s: (not s.mapped.foreign, not s.unseen, s.rank, s.pid))
        file = first.wrong[0]
        title = title_of(self.plan, file.path) or first.version
        why, remedy = _reason(self.plan, first)
        foreign = bool(first.mapped.foreign)
        return error(
            ("proved-before" if proved else "unproved-foreign") if foreign else "unproved-closure",
            rank=first.rank or "?",
            host=first.host,
            path=file.path,
            title=f" ({title})" if title else "",
            plan=self.plan,
            why=why,
            remedy=remedy,
        )

    def doubt(self, command: Sequence[str]) -> Finding:
        """The warning on a launch of ``command`` that ended well."""
        words = " ".join(command)[:_COMMAND]
        if any(s.how == "unasked" for s in self.sightings):
            return warning("unproved-unasked", command=words, plan=self.plan)
        if self.sightings:
            how = "it was called by address"
            if any(s.how == "session" for s in self.sightings):
                how = "MPI_Session_init has no world"
            elif any(s.unseen == "static" for s in self.sightings):
                how = "it is inside of a program or of a library of another name"
            return warning("unproved-planned", command=words, plan=self.plan, how=how)
        if self.blind:
            ranks = ", ".join(self.blind[:8])
            return warning("unproved-unwatched", command=words, ranks=ranks)
        return warning("unproved", command=words)

    def to_json(self) -> list[dict[str, Any]]:
        """The processes that had an MPI, for ``--json``."""
        return [
            {
                "rank": s.rank,
                "host": s.host,
                "pid": s.pid,
                "program": s.program,
                "how": s.how,
                "planned": [file.path for file in s.mapped.planned],
                "foreign": [
                    {"path": f.path, "title": title_of(self.plan, f.path)} for f in s.wrong
                ],
            }
            for s in self.sightings
        ]


def title_of(plan: Plan, path: str) -> str:
    """Vendor and version of an MPI of the image; "" when the image has none at ``path``."""
    return next((mpi.title for mpi in plan.facts.mpis if mpi.path == path), "")


def blind_ranks(launched: Collection[str], alive: Collection[str]) -> tuple[str, ...]:
    """The ranks that were launched, and whose witness was never loaded; in order."""
    return tuple(sorted(set(launched) - set(alive), key=lambda name: (len(name), name)))


def _reason(plan: Plan, seen: Sighting) -> tuple[str, str]:
    """Why the MPI's MPI_Init was not seen, and what to do about it."""
    name = PurePosixPath(plan.planned_file).name
    if seen.unseen == "static":
        return (
            f"{seen.wrong[0].path} contains an MPI: one was linked statically into it, which nothing can replace",
            "link it with the shared libmpi of the same MPI",
        )
    if seen.unseen == "privileged":
        return (
            f"{seen.program} is setuid, setgid or has file capabilities: the loader ignores LD_LIBRARY_PATH and "
            "LD_PRELOAD for it",
            f"remove them in the image: `chmod ug-s {seen.program}`, `setcap -r {seen.program}`",
        )
    if seen.unseen == "unloaded":
        return (
            f"LD_PRELOAD did not reach {seen.program}: it was started with a cleaned environment (`env -i`, sudo, "
            "a login shell), or has a C library of its own",
            "start it with the environment that the rank has",
        )
    saw = RankProof(
        rank=0, size=0, host=seen.host, mpi_path=seen.wrong[0].path, mpi_inode=seen.wrong[0].inode, mpi_count=1,
        version="", netmod="", providers=(), ring_ok=False, namespaces={}, library_path=seen.library_path,
    )  # fmt: skip
    if seen.how in ("session", "init"):  # called by its name: the loader has chosen the library
        why, remedy = why_kept(plan, saw)
        by = "it is started by MPI_Session_init; " if seen.how == "session" else ""
        return f"{by}{why}", remedy
    if reason := kept_by_remedy(plan, saw):
        return reason
    keep = "" if plan.mode == "container" else "; or keep the image's MPI: --mpi container"
    return (
        f"most likely the program opens that file by its path, not by the name {name}, and starts it by address: "
        "ctypes.CDLL, dlopen, Julia's MPI.jl",
        f"let it open {name} by name (Julia: MPIPreferences.use_system_binary()){keep}",
    )
