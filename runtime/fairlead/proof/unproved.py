"""The verdict on processes that have not proved anything, by what they had mapped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from fairlead.base.errors import Finding, error, warning
from fairlead.base.python_imports import package_of
from fairlead.base.text import some
from fairlead.proof.observe import Bare, Sighting
from fairlead.proof.verdict import RankProof, kept_by_remedy, why_kept
from fairlead.swap.model import Plan
from fairlead.swap.python_reach import surely_imported
from fairlead.swap.reach import Kind, reach

_COMMAND = 280  # characters


@dataclass(frozen=True)
class Unproved:
    """What is known of the processes of a launch that have not proved anything.

    Attributes:
        sightings: the processes that had an MPI.
        blind: the ranks that were launched, and in which no process has loaded the witness.
        bare: the programs that ranks have started without it.
        ranks: how many were asked for.
        cut: those that had lost the launcher's descriptor when they called MPI_Init.
    """

    plan: Plan
    sightings: tuple[Sighting, ...] = ()
    blind: tuple[str, ...] = ()
    bare: tuple[Bare, ...] = ()
    ranks: int = 0
    cut: tuple[str, ...] = ()

    def failed(self, proved: bool = False) -> Finding | None:
        """The error on a process with another MPI than the planned one; None when there was none.

        Args:
            proved: other processes of the launch have proved it. Then a tool may map an MPI that it does not start.
        """
        wrong = [s for s in self.sightings if s.wrong and (s.ran or not proved)]
        if not wrong:
            return self._alone(proved)
        # One that was looked at shows more; among the others, those with another MPI come first.
        first = min(wrong, key=lambda s: (not s.mapped.foreign, not s.unseen, s.rank, s.pid))
        file = first.wrong[0]
        title = title_of(self.plan, file.path) or first.version
        why, remedy = _reason(self.plan, first, first.rank in self.blind)
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

    def _alone(self, proved: bool) -> Finding | None:
        """The error on programs with an MPI that every rank has started without any variable of the launcher.

        Args:
            proved: another program of the launch was.
        """
        lone = {s.rank for s in self.sightings if s.world == 1}
        if not proved and 1 < self.ranks <= len(lone):
            return error(
                "world-size-session", asked=self.ranks, launcher_path=self.plan.launcher.path
            )
        unloaded = any(s.unseen == "unloaded" and not s.rank for s in self.sightings)
        without = [b for b in self.bare if not b.ranked]
        alone = [b for b in without if unloaded or _loads_mpi(self.plan, b)]
        # A static program that cleans it, as busybox does, tells nobody.
        bare = [s.program for s in self.sightings if s.unseen == "unloaded" and not s.ranked]
        if self.ranks < 2 or max(len({b.rank for b in alone}), len(bare)) < self.ranks:
            return None
        return error(
            "world-size-cleaned-besides" if proved else "world-size-cleaned",
            asked=self.ranks,
            program=alone[0].program if alone else bare[0],
            launcher_path=self.plan.launcher.path,
        )

    def besides(self) -> Finding | None:
        """The warning, in a launch that is proved, on programs without the witness that may use an MPI."""
        unknown = [b for b in self.bare if _loads_mpi(self.plan, b) is not False]
        if not unknown:
            return None
        programs = some(list(dict.fromkeys(b.program for b in unknown)))
        return warning("unproved-besides", programs=programs, ranks=_ranks(unknown))

    def doubt(self, command: Sequence[str]) -> Finding:
        """The warning on a launch of ``command`` that ended well."""
        words = " ".join(command)[:_COMMAND]
        if any(s.how == "unasked" for s in self.sightings):
            return warning("unproved-unasked", command=words, plan=self.plan)
        if self.cut:
            return warning("unproved-cut", command=words, ranks=", ".join(self.cut[:8]))
        without = [s for s in self.sightings if s.unseen in ("unloaded", "privileged")]
        if without:
            why, remedy = _reason(self.plan, without[0], without[0].rank in self.blind)
            given = {"command": words, "plan": self.plan, "why": why, "remedy": remedy}
            return warning("unproved-without-witness", **given)
        if self.bare:
            programs = some(list(dict.fromkeys(b.program for b in self.bare)))
            return warning("unproved-bare", command=words, programs=programs)
        if self.sightings:
            return self._unwatched_start(words)
        if self.blind:
            ranks = ", ".join(self.blind[:8])
            if program := _dynamic(self.plan):
                given = {"command": words, "ranks": ranks, "program": program}
                return warning("unproved-unwatched-environment", **given)
            return warning("unproved-unwatched", command=words, ranks=ranks)
        return warning("unproved", command=words)

    def _unwatched_start(self, words: str) -> Finding:
        """The warning on processes that have the planned MPI, and whose MPI_Init was not seen."""
        how = "it was not called, or called by its address (dlopen, ctypes, Julia, RTLD_DEEPBIND)"
        unknown = "how many ranks found each other"
        sizes = sorted({s.world for s in self.sightings if s.world})
        if sizes:
            how = f"the program starts MPI by MPI_Session_init: mpi://WORLD has {', '.join(map(str, sizes))} ranks"
            unknown = "whether messages arrive"
        elif any(s.how == "session" for s in self.sightings):
            how = "MPI_Session_init has no world"
        elif any(s.unseen == "static" for s in self.sightings):
            how = "it is inside of a program or of a library of another name"
        return warning("unproved-planned", command=words, plan=self.plan, how=how, unknown=unknown)

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


def _loads_mpi(plan: Plan, started: Bare) -> bool | None:
    """Whether a program of the image loads an MPI, by its links or the modules that its words name; None: perhaps."""
    command = (started.program, *started.words)
    reached = reach(plan.facts, replace(plan.request, apps=(), command=command))
    if not reached.programs or not reached.files:
        return False
    kinds = {program.kind for program in reached.programs if not program.perhaps}
    named = {package_of(elf.path)[1] for elf in reached.files}
    certain = kinds == {Kind.LINKED} or (
        kinds == {Kind.PYTHON} and named & surely_imported(plan.facts, plan.request, command)
    )
    return True if certain else None


def _ranks(of: Sequence[Bare]) -> str:
    return some(sorted({b.rank for b in of}, key=lambda name: (len(name), name)), 8)


def _dynamic(plan: Plan) -> str:
    """The command's program where the loader does preload for it, as far as its file says; else empty."""
    facts = plan.facts
    first = plan.request.command[:1]
    programs = reach(facts, replace(plan.request, apps=first, command=())).programs if first else ()
    ids = {*facts.set_ids, *facts.capable}
    kinds = {facts.programs.get(p.path, "static") for p in programs}
    if not facts.glibc or any(
        "static" in kind.split() or kind[:2] in ("#!", "->") for kind in kinds
    ):
        return ""
    return "" if not programs or ids.intersection(p.path for p in programs) else programs[0].path


def _linked_by(plan: Plan, library: str) -> str:
    """The file of the image, other than an MPI, that needs a library of its MPI by a link; empty without one.

    One that the command can load comes first.
    """
    mpis = {mpi.path for mpi in plan.facts.mpis}
    needs = (*plan.facts.parts.items(), *plan.facts.leads.items())
    users = [path for path, needed in needs if library in needed.values() and path not in mpis]
    loaded = {elf.path for elf in reach(plan.facts, plan.request).files}
    return min(users, key=lambda path: path not in loaded, default="")


def title_of(plan: Plan, path: str) -> str:
    """Vendor and version of an MPI of the image; "" when the image has none at ``path``."""
    return next((mpi.title for mpi in plan.facts.mpis if mpi.path == path), "")


def blind_ranks(launched: Collection[str], alive: Collection[str]) -> tuple[str, ...]:
    """The ranks that were launched, and whose witness was never loaded; in order."""
    return tuple(sorted(set(launched) - set(alive), key=lambda name: (len(name), name)))


def _reason(plan: Plan, sighting: Sighting, blind: bool = False) -> tuple[str, str]:
    """Why the MPI's MPI_Init was not seen, and what to do about it.

    Args:
        blind: no process of the rank has loaded the witness, not even its first.
    """
    name = PurePosixPath(plan.planned_file).name
    if sighting.unseen == "static":
        return (
            f"{sighting.wrong[0].path} contains an MPI: one was linked statically into it, which nothing can replace",
            "link it with the shared libmpi of the same MPI",
        )
    if sighting.unseen == "privileged":
        return (
            f"{sighting.program} is setuid, setgid or has file capabilities: the loader ignores LD_LIBRARY_PATH and "
            "LD_PRELOAD for it",
            f"remove them in the image: `chmod ug-s {sighting.program}`, `setcap -r {sighting.program}`",
        )
    if sighting.unseen == "unloaded" and blind and _dynamic(plan):
        return (
            f"LD_PRELOAD did not reach {sighting.program}, nor the first program of its rank: a start-up script of the image "
            "(/.singularity.d/env, its entry point) has removed it",
            "keep LD_PRELOAD in these scripts",
        )
    if sighting.unseen == "unloaded":
        return (
            f"LD_PRELOAD did not reach {sighting.program}: it was started with a cleaned environment (`env -i`, "
            "`unset LD_PRELOAD`, sudo, a login shell) or an LD_PRELOAD of its own, or has a C library of its own",
            "start it with the environment that the rank has, and add to a variable: LD_PRELOAD=$LD_PRELOAD:TOOL",
        )
    saw = RankProof(
        rank=0, size=0, host=sighting.host, mpi_path=sighting.wrong[0].path, mpi_inode=sighting.wrong[0].inode, mpi_count=1,
        version="", netmod="", providers=(), ring_ok=False, namespaces={}, library_path=sighting.library_path,
    )  # fmt: skip
    if sighting.how in ("session", "init"):  # called by its name: the loader has chosen the library
        why, remedy = why_kept(plan, saw)
        by = "it is started by MPI_Session_init; " if sighting.how == "session" else ""
        return f"{by}{why}", remedy
    if reason := kept_by_remedy(plan, saw):
        return reason
    if not sighting.mapped.foreign and (by := _linked_by(plan, sighting.wrong[0].path)):
        return (
            f"{by} of the image is linked to it, and stays the image's",
            "name a host MPI of the image's release with `--mpi PREFIX`, or keep the image's MPI: --mpi container",
        )
    keep = "" if plan.mode == "container" else "; or keep the image's MPI: --mpi container"
    return (
        f"most likely the program opens that file by its path, not by the name {name}, and starts it by address: "
        "ctypes.CDLL, dlopen, Julia's MPI.jl",
        f"let it open {name} by name (Julia: MPIPreferences.use_system_binary()){keep}",
    )
