"""What a proof says, and the verdict on it: what each rank saw against what was planned.

Exit code 0 proves nothing: most wrong set-ups end well with every rank alone, or on the image's
MPI. :mod:`fairlead.proof.probe_job` collects what ranks see; :func:`judge` names what differs from the plan, the most
likely cause, and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath

from fairlead.base.errors import Finding, Severity, error, warning
from fairlead.elf.facts import AbiFamily
from fairlead.launchers.pmi import pmi_named
from fairlead.proof.closure import is_front
from fairlead.swap.model import CARRIED_MOUNT, MOUNT, Plan
from fairlead.swap.remedies.registry import ordered

_BELOW_TOP = MOUNT.index("/", 1)
# Folders for files of a moment, and those where pex, shiv and others keep what they have unpacked.
_UNPACKED = re.compile(r"^/(tmp|var/tmp|dev/shm|run)/|/\.(cache|pex|shiv)/")
_VENDOR_WORDS = {
    "MPICH": "MPICH Version",
    "Intel MPI": "Intel(R) MPI Library",
    "Open MPI": "Open MPI",
    "Cray MPICH": "CRAY MPICH",
    "MVAPICH": "MVAPICH",
}


@dataclass(frozen=True)
class RankProof:
    """What one rank saw.

    Attributes:
        mpi_path: the MPI library mapped into it, as the container sees it.
        mpi_inode: that file's inode; equal to the planned file's on the host.
        mpi_count: MPI libraries mapped; more than one corrupt each other.
        version: first line of ``MPI_Get_library_version``.
        ring_ok: a message to each neighbour arrived intact; None if none was tried.
        transport: what carries messages, e.g. ``ucx: cma, sysv``; some MPIs report it on one rank
            only, or never.
        library_path: LD_LIBRARY_PATH in it.
        app_mpi: what the loader gives the program itself, empty for a script.
        devices: the fabric's device nodes that it has open; a ``device`` netmod is concluded from them,
            where the MPI itself does not report it.
        others: files that it maps in the place of a library that belongs to the planned MPI.
        boot: of its node's kernel; "" where that is unknown.
        processors: that it may use, as in ``0-3,8``; "" where that is unknown.
        online: processors of its node; 0 where that is unknown.
        launched: the launched rank that it is of, as its launcher numbers it; "" where that is unknown.
        numbered: the same by its launcher's variables, which another launcher within the rank changes.
    """

    rank: int
    size: int
    host: str
    mpi_path: str
    mpi_inode: int
    mpi_count: int
    version: str
    netmod: str
    providers: tuple[str, ...]
    ring_ok: bool | None
    namespaces: Mapping[str, str]
    library_path: str = ""
    app_mpi: str = ""
    devices: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    boot: str = ""
    processors: str = ""
    online: int = 0
    launched: str = ""
    numbered: str = ""

    @property
    def node(self) -> tuple[str, str]:
        """Two nodes, or their containers, may have one name."""
        return self.host, self.boot

    @property
    def transport(self) -> str:
        if not self.netmod and not self.providers:
            return "unknown"
        return f"{self.netmod}: {', '.join(self.providers)}" if self.providers else self.netmod


@dataclass(frozen=True)
class Proof:
    """The verdict of a probe job.

    Attributes:
        ranks: in rank order; of the launch's world, or of every world that was found where none is the launch's.
        findings: what differs from the plan; an error means exit code 122.
        bound: files of the image that the planned file is shown over.
    """

    asked: int
    planned_file: str
    planned_inode: int
    planned_title: str
    ranks: tuple[RankProof, ...]
    findings: tuple[Finding, ...]
    seconds: float
    bound: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not any(f.severity is Severity.ERROR for f in self.findings)

    @property
    def places(self) -> tuple[str, ...]:
        """Where the planned file may be mapped: it may be shown at several places."""
        return (self.planned_file, *self.bound)

    def mapped_as_planned(self, rank: RankProof) -> bool:
        """Whether that rank mapped the planned file, by its inode too where the plan knows it."""
        same = rank.mpi_inode == self.planned_inode
        if rank.mpi_path in self.places:
            return same or not self.planned_inode
        # The kernel names a file without symlinks: an image may have one at /opt.
        staged = self.planned_file.startswith(f"{MOUNT}/")
        behind_link = staged and rank.mpi_path.endswith(self.planned_file[_BELOW_TOP:])
        return same and bool(self.planned_inode) and behind_link

    def elsewhere(self, rank: RankProof) -> bool:
        """Whether that rank mapped a file at another place than the planned one."""
        return rank.mpi_path not in self.places and not self.mapped_as_planned(rank)


def judged(plan: Plan, asked: int, inode: int, ranks: Sequence[RankProof], seconds: float) -> Proof:
    """The verdict on what ``ranks`` saw.

    Args:
        asked: how many ranks there should be.
        inode: of the planned MPI's file; 0 when any will do.
        ranks: of every world that has reported.
    """
    world = world_of(ranks, asked)
    proof = Proof(
        asked, plan.planned_file, inode, plan.planned_title, _ordered(world or ranks), (), seconds, plan.bound
    )  # fmt: skip
    # Other programs of its ranks may be alone: of them the MPI counts.
    chosen = {id(rank) for rank in world or ranks}
    others = _ordered(rank for rank in ranks if id(rank) not in chosen)
    return replace(proof, findings=(*judge(plan, proof), *_mpi(plan, replace(proof, ranks=others))))


def _ordered(ranks: Iterable[RankProof]) -> tuple[RankProof, ...]:
    return tuple(sorted(ranks, key=lambda r: (r.rank, r.host)))


def world_of(ranks: Sequence[RankProof], asked: int) -> tuple[RankProof, ...]:
    """Of every rank that has reported, those of the world that the launch was to form; empty when there is none.

    Ranks that each start a launcher, as ``fairlead run -n 2 … mpiexec -n 2 PROGRAM`` does, form worlds of the right size,
    and each is of one launched rank.
    """
    whole = [rank for rank in ranks if rank.size == asked]
    # Those that MPI_Comm_spawn has started are of no launched rank.
    launched = [rank for rank in whole if rank.launched]
    if nested(launched) or (len(whole) > asked and not launched):
        return ()
    whole = launched or whole
    last = {rank.rank: rank for rank in whole}  # a rank may run several programs, one after another
    return tuple(last.values()) if last.keys() >= set(range(asked)) else ()


def renumbered(ranks: Iterable[RankProof]) -> bool:
    """Whether another launcher has started what a launched rank is, perhaps as a job of one."""
    return any(r.launched and r.numbered and r.launched != r.numbered for r in ranks)


def nested(ranks: Iterable[RankProof]) -> bool:
    """Whether one launched rank is several ranks."""
    within: dict[str, set[int]] = {}
    for rank in ranks:
        if rank.launched and rank.size > 1:
            within.setdefault(rank.launched, set()).add(rank.rank)
    return any(len(several) > 1 for several in within.values())


def other_worlds(
    plan: Plan, asked: int, worlds: Sequence[Sequence[RankProof]]
) -> Iterator[Finding]:
    """The warning on a proved launch each of whose ranks was also alone, or a job of its own.

    Args:
        worlds: that have reported, of the launch and of programs that its ranks have run by themselves.
    """
    if asked < 2:
        return
    of = {
        rank.launched: len(world)
        for world in worlds
        for rank in world
        if rank.launched and rank.size == len(world) and len({r.launched for r in world}) == 1
    }
    if len(of) < asked:
        return
    most = max(of.values())
    sizes = f"{len(of)} programs reported a world of {', '.join(map(str, list(of.values())[:8]))}"
    how = (
        "every rank was alone in a program that it ran",
        "the launcher's variables and descriptors (PMI_FD, PMI_RANK) did not reach that program",
        "nothing, if the ranks are meant to be apart there; else start it with the environment that the rank has",
    )
    if most > 1:
        how = (
            f"every rank started a job of {most} ranks of its own",
            "the command starts mpiexec, mpirun or srun, which `fairlead run` does already",
            "nothing, if these jobs are meant to be apart; else remove the launcher from the command",
        )
    given = {"launcher_path": plan.launcher.path, "seen": sizes}
    yield warning("world-size-besides", what=how[0], why=how[1], remedy=how[2], **given)


def judge(plan: Plan, proof: Proof) -> tuple[Finding, ...]:
    """Compares what the ranks saw with the plan; every difference is one finding."""
    return (
        *_world(plan, proof),
        *_places(plan, proof),
        *_mpi(plan, proof),
        *_messages(plan, proof),
        *_transport(plan, proof),
        *_shared(proof),
        *_bound(proof),
    )


def _places(plan: Plan, proof: Proof) -> list[Finding]:
    """Whether the ranks are spread over the nodes as requested."""
    if len(proof.ranks) != proof.asked:
        return []
    nodes = by_node(proof.ranks)
    most = max(map(len, nodes.values()), default=0)
    return misplaced(plan, proof.asked, len(nodes), most, places(nodes))


def misplaced(plan: Plan, asked: int, nodes: int, most: int, evidence: str) -> list[Finding]:
    """What is wrong with where the ranks are, if anything.

    More nodes than requested may be names only: an engine can give each container its own.

    Args:
        asked: how many ranks there are.
        nodes: that they are on.
        most: of them on one node; 0 if unknown.
        seen: where they are, in words.
    """
    shape, own = plan.request.shape.of(asked), plan.request.shape.extra
    fields = {
        "launcher_path": plan.launcher.path, "seen": evidence, "extra": own and f"--launcher-arg={' '.join(own)}"
    }  # fmt: skip
    if nodes < shape.filled:
        finding = error("placement", found=nodes, asked=shape.filled, **fields)
    elif nodes == shape.filled and most > shape.each:
        finding = error("placement-uneven", most=most, each=shape.each, **fields)
    else:
        return []
    # The user's own arguments come last on the line: what they ask for is a warning.
    return [replace(finding, severity=Severity.WARNING) if own else finding]


def by_node(ranks: Iterable[RankProof]) -> dict[tuple[str, str], list[RankProof]]:
    """The ranks on each node."""
    proofs: dict[tuple[str, str], list[RankProof]] = {}
    for rank in ranks:
        proofs.setdefault(rank.node, []).append(rank)
    return proofs


def places(nodes: Mapping[tuple[str, str], Sequence[RankProof]]) -> str:
    """``node1: 4 ranks, node2: 1 rank``."""
    shown = [
        f"{host}: {len(on)} rank{'s' * (len(on) > 1)}" for (host, _), on in list(nodes.items())[:8]
    ]
    return ", ".join(shown) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")


def _mpi(plan: Plan, proof: Proof) -> tuple[Finding, ...]:
    """Which MPI the ranks have, and which libraries below it."""
    if is_front(plan):
        return ()
    return (
        *_one_mpi(proof),
        *_planned_file(plan, proof),
        *_closure(plan, proof),
        *_version(plan, proof),
    )


def _world(plan: Plan, proof: Proof) -> list[Finding]:
    if len(world_of(proof.ranks, proof.asked)) == len(proof.ranks):
        return []
    alone = all(p.size == 1 for p in proof.ranks) and proof.asked > 1
    sizes = f"{len(proof.ranks)} processes reported a world of {', '.join(str(p.size) for p in proof.ranks[:8])}"
    mapped = _family_of(proof.ranks[0].version)
    if nested(proof.ranks) or renumbered(proof.ranks):
        return [
            error("world-size-nested", launcher_path=plan.launcher.path, seen=sizes, proof=proof)
        ]
    if mapped is not AbiFamily.UNKNOWN and plan.launcher.family not in (mapped, AbiFamily.UNKNOWN):
        why = (
            f"the launcher is {plan.launcher.title}, the mapped MPI is {proof.ranks[0].version}: "
            "they do not use the same wire-up protocol"
        )
        remedy = f"name the mpiexec of the mapped MPI: --launcher {plan.own_launcher}"
    elif plan.unknown_mpi:
        why = (
            f"the family of {plan.planned_title} is unknown: by {plan.launcher.title} its ranks did not find each other, "
            "or it is one for a single process"
        )
        remedy = (
            "name another launcher: --launcher PATH of the mpiexec of an MPI, `--launcher image` for the image's own; "
            "under Slurm a PMI: --launcher-arg=--mpi=pmix"
        )
    elif plan.launcher.kind == "srun":
        way = pmi_named(plan.request.shape.extra) or plan.launcher.pmi or "Slurm's default"
        why = f"by srun's PMI ({way}) the mapped MPI did not find the other ranks"
        remedy = (
            "remove --launcher-arg=--mpi; `srun --mpi=list` lists the choices; or start them with the "
            "MPI's own launcher: --launcher mpiexec"
        )
    else:
        why = "the launcher's variables and descriptors (PMI_FD, PMI_RANK) did not reach the ranks"
        remedy = (
            "remove engine options that clean the environment; `fairlead explain` shows the line"
        )
    return [
        error(
            "world-size-alone" if alone else "world-size-partial",
            asked=proof.asked,
            launcher_path=plan.launcher.path,
            seen=sizes,
            why=why,
            remedy=remedy,
        )
    ]


def _family_of(version: str) -> AbiFamily:
    if "Open MPI" in version:
        return AbiFamily.OPENMPI
    if any(w in version for w in ("MPICH", "Intel(R) MPI", "MVAPICH")):
        return AbiFamily.MPICH
    return AbiFamily.UNKNOWN


def _one_mpi(proof: Proof) -> list[Finding]:
    return [error("one-mpi", rank=rank) for rank in proof.ranks if rank.mpi_count != 1][:1]


def _planned_file(plan: Plan, proof: Proof) -> list[Finding]:
    for p in proof.ranks:
        program = p.app_mpi if p.app_mpi and p.app_mpi not in proof.places else ""
        if program or proof.elsewhere(p):
            why, remedy = why_kept(plan, p)
            where = f"{p.host}: {program or p.mpi_path}"
            what = f"rank {p.rank} runs on another MPI than planned: {p.version}"
            if program:
                what = f"{mpi_program(plan)} takes another MPI than planned on rank {p.rank}"
            return [
                error("planned-file", what=what, where=where, proof=proof, why=why, remedy=remedy)
            ]
        if not proof.mapped_as_planned(p):
            if p.mpi_path in plan.bound:
                return [error("planned-file-not-shown", rank=p, proof=proof)]
            return [error("planned-file-mounted-over", rank=p, proof=proof, mount=MOUNT)]
    return []


def _closure(plan: Plan, proof: Proof) -> list[Finding]:
    # Another MPI brings its own libraries along: that is said once.
    odd = [rank for rank in proof.ranks if rank.others and not proof.elsewhere(rank)]
    return [_other_library(plan, proof, rank) for rank in odd[:1]]


def _other_library(plan: Plan, proof: Proof, rank: RankProof) -> Finding:
    """A library below the MPI that is not the carried one, or not of the planned MPI."""
    stem = PurePath(rank.others[0]).name.partition(".so")[0].partition("-")[0]
    for carried in plan.carried if plan.carried_staging else ():
        if any(soname.partition(".so")[0] == stem for soname in carried.library.sonames):
            planned = f"{CARRIED_MOUNT}/lib/{carried.library.sonames[0]}"
            return error("carried-kept", rank=rank, title=carried.library.title, planned=planned)
    return error("closure-mapped", rank=rank, proof=proof)


def kept_by_remedy(plan: Plan, rank: RankProof) -> tuple[str, str] | None:
    """Why another MPI was taken and what to do, if a variable or a remedy's own failure explains it."""
    for name, value in plan.request.mpi4py:
        if PurePath(value).parent == PurePath(rank.mpi_path).parent:
            return f"{name} tells mpi4py to open {value}", f"unset {name}"
    if _is_unpacked(plan, rank.mpi_path):
        return (
            f"{rank.mpi_path} is no file of the image: most likely the program unpacks it when it starts, as those of "
            "PyInstaller's `--onefile`, pex and AppImages do",
            "build the program without an MPI in it, or as a folder (PyInstaller: `--onedir`), of which the host's MPI takes the "
            "place of the image's",
        )
    for remedy in ordered():
        if reason := remedy.explain_failure(plan, rank):
            return reason
    return None


def why_kept(plan: Plan, rank: RankProof) -> tuple[str, str]:
    """The most likely reason that another MPI was taken, and what to do about it."""
    if reason := kept_by_remedy(plan, rank):
        return reason
    own = next((m.family for m in plan.facts.mpis if m.path == rank.mpi_path), AbiFamily.UNKNOWN)
    family = own if own is not AbiFamily.UNKNOWN else _family_of(rank.version)
    if plan.host and family not in (plan.family, AbiFamily.UNKNOWN):
        return (
            f"the program is compiled for an MPI of the {family} family, which one of the {plan.family} family cannot replace",
            "name the program that calls MPI (--app PROGRAM), and the plan is made for its family; or keep the image's "
            "MPI: --mpi container",
        )
    if plan.staging and (lacking := plan.staging.lacking(plan.names)):
        return (
            f"the image needs {lacking[0]}, and the staged host MPI has no alias of that name",
            f"add an alias {lacking[0]} next to the staged library; `fairlead explain` shows the aliases",
        )
    if plan.staging and MOUNT not in rank.library_path:
        return (
            f"LD_LIBRARY_PATH there is {rank.library_path or 'empty'}: the image's start-up scripts "
            "changed it, or lack the file at which Apptainer adds the caller's variables",
            "look into /.singularity.d/env of the image: it needs a 99-base.sh and must not set LD_LIBRARY_PATH",
        )
    first = rank.library_path.split(":")[0]
    if plan.staging and not first.startswith(MOUNT):
        return (
            f"LD_LIBRARY_PATH there begins with {first}, ahead of {MOUNT}: a script that starts the program puts it "
            "there (a wrapper in the image, a module)",
            f"start the program itself, or have the script append: LD_LIBRARY_PATH=$LD_LIBRARY_PATH:{first}",
        )
    return (
        "the loader found another library first",
        f"`fairlead run --force … -- env LD_DEBUG=libs {mpi_program(plan) or 'PROGRAM'}` shows where it looks",
    )


def _is_unpacked(plan: Plan, path: str) -> bool:
    """Whether a file lies where programs put what they unpack, and is neither the image's nor shown by a bind."""
    known = {mpi.path for mpi in plan.facts.mpis}
    shown = any(PurePath(path).is_relative_to(bind.target) for bind in plan.request.binds)
    return bool(_UNPACKED.search(path)) and path not in known and not shown


def _version(plan: Plan, proof: Proof) -> list[Finding]:
    vendor = next((v for v in _VENDOR_WORDS if proof.planned_title.startswith(v)), "")
    word, version = _VENDOR_WORDS.get(vendor, ""), proof.planned_title.removeprefix(vendor).strip()
    for p in proof.ranks:
        planned = proof.mapped_as_planned(p)
        # Without a vendor nothing was known of it beforehand: path and inode have to do.
        if vendor and planned and not (word in p.version and version in p.version):
            return [error("version", rank=p, planned_title=proof.planned_title)]
    return []


def _messages(plan: Plan, proof: Proof) -> list[Finding]:
    if any(p.ring_ok is None for p in proof.ranks):
        return [warning("ring-untried", plan=plan)]
    bad = [str(p.rank) for p in proof.ranks if not p.ring_ok]
    return [error("ring", bad=", ".join(bad[:8]))] if bad else []


def _transport(plan: Plan, proof: Proof) -> list[Finding]:
    accepted = set(plan.site.accepts)
    for p in proof.ranks:
        used = {part for provider in p.providers for part in provider.split(";")}
        if foreign := sorted(used - accepted):
            names, allowed = ", ".join(foreign), ", ".join(sorted(accepted))
            return [
                error("transport-foreign", foreign=names, rank=p, site=plan.site, accepted=allowed)
            ]
    if proof.asked > 1 and not any(p.netmod or p.providers for p in proof.ranks):
        return [warning("transport-unknown", proof=proof)]
    return []


def _shared(proof: Proof) -> list[Finding]:
    for (host, _), ranks in by_node(proof.ranks).items():
        if len({rank.namespaces.get("shm", "") for rank in ranks}) > 1:
            return [error("shared-memory-separate", parted=host)]
    return []


def _bound(proof: Proof) -> list[Finding]:
    """Ranks of a node that are bound to fewer processors than they are, while it has more."""
    for (host, _), ranks in by_node(proof.ranks).items():
        masks: dict[frozenset[int], list[int]] = {}
        for rank in ranks:
            masks.setdefault(numbers(rank.processors), []).append(rank.rank)
        for mask in sorted(filter(None, masks), key=len):
            within = sorted(n for other, on in masks.items() if other and other <= mask for n in on)
            if len(mask) < min(len(within), ranks[0].online):
                shown = ", ".join(map(str, within[:8])) + (", …" if len(within) > 8 else "")
                on = ", ".join(map(str, sorted(mask)[:8]))
                return [
                    warning(
                        "binding", host=host, within=len(within), mask=len(mask), ranks=shown, on=on, online=ranks[0].online,
                    )
                ]  # fmt: skip
    return []


@cache
def numbers(text: str) -> frozenset[int]:
    """``0-2,8`` as 0, 1, 2 and 8; empty for anything else."""
    values: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return frozenset()
        values.update(range(int(first), min(int(last or first), 1 << 16) + 1))
    return frozenset(values)


def mpi_program(plan: Plan) -> str:
    """The program of the command when it is one that itself needs an MPI."""
    first = plan.request.command[0] if plan.request.command else ""
    for elf in plan.consumers:
        if elf.interpreter and not elf.soname and first in (elf.path, elf.path.rsplit("/", 1)[-1]):
            return elf.path
    return ""
