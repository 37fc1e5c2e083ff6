"""The proof inside a launch: the witness's settings, its records, its time limit.

The witness (``native/witness.c``) is preloaded into every rank and stands around the program's own
MPI_Init. What it saw is judged by :mod:`fairlead.proof.verdict` while the launch runs; a launch that is not as planned
is ended before the program has done much, one that does not get on in its start-up as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity, error, fail, warning
from fairlead.base.text import some
from fairlead.elf.facts import AbiFamily
from fairlead.launch.node_check import verified_hosts
from fairlead.launch.nodes import unreachable
from fairlead.launch.processes import runs_in_container
from fairlead.launch.run_folder import OTHERS, exits, signal_name
from fairlead.proof.closure import Library, is_front, setting
from fairlead.proof.observe import Observer, bare, reported
from fairlead.proof.unproved import Unproved, blind_ranks
from fairlead.proof.verdict import (
    Proof,
    RankProof,
    by_node,
    judged,
    numbers,
    other_worlds,
    places,
    world_of,
)
from fairlead.prove import transports
from fairlead.swap.model import RUN_MOUNT as RUN_MOUNT  # where its records go, in the container
from fairlead.swap.model import Bind, Plan

_SAID = 280  # characters
_RECORD = 2048  # bytes a rank, as in witness.c
_SKEW = 10  # times the limit, for ranks that come to MPI_Init one by one
_AGAIN_S = 5.0  # between two looks after the proof: the run's folder may be on a shared file system
_STRAGGLERS_S = 1.0  # ranks that are each alone report one after another


def asked(
    plan: Plan,
    ranks: int,
    inode: int,
    folder: Path | None = None,
    *,
    ucx: bool = True,
    known: Sequence[Library] = (),
) -> tuple[dict[str, str], tuple[Bind, ...]]:
    """The variables and binds by which the witness learns what must come true.

    Args:
        inode: of the planned file; 0 when any will do.
        folder: where its records go; without one, rank 0 prints a line.
        ucx: let UCX log the transports that it uses; not where the user configures its logging.
        known: the libraries that belong to the planned MPI.
    """
    if not plan.witness:
        return {}, ()
    out = RUN_MOUNT if folder else ""
    front = "|front" if is_front(plan) else ""
    settings = {"FAIRLEAD_PROOF": f"{ranks}|{inode}|{out}|{plan.planned_file}{front}"}
    if known:
        settings["FAIRLEAD_PROOF_LIBS"] = setting(known)
    if folder is None:
        return settings, ()
    # UCX reads these when it is loaded, which can be before MPI_Init. The witness unlinks the file. It is in the run's
    # folder, since names in /dev/shm are for everybody to take, and where a rank that is another user by then can write:
    # UCX ends a program whose log it cannot open.
    if ucx:
        into = f"{RUN_MOUNT}/{OTHERS}" if (folder / OTHERS).is_dir() else RUN_MOUNT
        settings |= {"UCX_LOG_LEVEL": "info", "UCX_LOG_FILE": f"{into}/ucx.%h.%p"}
    return settings, (Bind(str(folder), RUN_MOUNT),)


def clear(folder: Path) -> None:
    """Removes the logs of ranks that ended before MPI had started."""
    for path in (*folder.glob("ucx.*"), *folder.glob(f"{OTHERS}/ucx.*")):
        with suppress(OSError):
            path.unlink()


@dataclass(frozen=True)
class Expected:
    """What a launch should come to.

    Attributes:
        inode: of the planned MPI's file.
        folder: the run's, where ranks report.
        nodes: names of the nodes that ranks may be on, for those of which none reports.
        known: the libraries that belong to the planned MPI.
        signed: a signature of the image was required.
        slots: for ranks on each node, in a job that has said so; else 0.
    """

    plan: Plan
    ranks: int
    inode: int
    folder: Path
    nodes: tuple[str, ...] = ()
    known: tuple[Library, ...] = ()
    signed: bool = False
    slots: int = 0


class Startup:
    """Watches the start-up of one launch.

    Attributes:
        proof: None until the ranks have reported.
        folder: of the run.
    """

    def __init__(
        self,
        expected: Expected,
        limit_s: float,
        on_proof: Callable[[Proof], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
            limit_s: how long nothing may happen before MPI has started on every rank.
            on_proof: called once, with the proof, before anything is raised of it.
        """
        self.proof: Proof | None = None
        self._expected, self.folder, self._ranks = expected, expected.folder, expected.ranks
        # MPI_Init itself takes longer the more ranks there are.
        self._limit_s, self._on_proof = limit_s + expected.ranks / 100, on_proof
        self._clock = clock
        self._begun = self._moved = clock()
        self._counts: tuple[int, int, int] = (0, 0, 0)
        self._first: float | None = None
        self._again = 0.0
        self._noted = 0  # programs that were started without the witness
        self._observer = Observer(
            expected.plan, expected.inode, expected.known, expected.folder.name, clock
        )

    def look(self) -> None:
        """One look at the records.

        Raises:
            FairleadError: exit code 122 when the ranks are not as planned, or run on another MPI without a
                proof; 124 when the start-up does not get on.
        """
        if self.proof is not None:
            return self._look_again()
        proofs = reports(self.folder, "proof")
        if not proofs:
            self._observe()
            return self._watch()
        now = self._clock()
        self._first = now if self._first is None else self._first
        ranks = [rank for path in proofs for rank in read_records(path, self.folder)]
        if self._is_complete(ranks, now - self._first):
            self._judge(ranks)

    def _is_complete(self, ranks: Sequence[RankProof], waited: float) -> bool:
        """Whether the launch's world has reported, or these are all reports that will come.

        Of an unknown MPI each rank reports by itself, when the program asks: first perhaps about itself alone.
        """
        if world_of(ranks, self._ranks):
            return True
        if not self._expected.plan.unknown_mpi:
            alone = {rank.launched or nth for nth, rank in enumerate(ranks) if rank.size == 1}
            return len(alone) >= self._ranks or waited > _STRAGGLERS_S
        whole = [rank for rank in ranks if rank.size == self._ranks]
        met = {rank.launched for rank in whole}
        if all(
            rank.size == self._ranks or (rank.launched and rank.launched in met) for rank in ranks
        ):
            return len(whole) >= self._ranks
        return waited > self._limit_s

    def last_look(self) -> None:
        """What was reported and not judged while the launch ran, which may have been short.

        Raises:
            FairleadError: exit code 122 when a process that has proved nothing had another MPI.
        """
        self._first = float("-inf")
        if self.proof is None and any(self.folder.glob("proof.*")):
            self.look()
        if failure := self.unproved().failed(proved=self.proof is not None):
            raise FairleadError(failure, ExitCode.PROOF_FAILED)

    def besides(self) -> Iterator[Finding]:
        """Warnings on what ranks have run apart from what is proved; nothing where nothing is."""
        if self.proof is None:
            return
        worlds = [read_records(path, self.folder) for path in reports(self.folder, "proof")]
        yield from other_worlds(self._expected.plan, self._ranks, worlds)
        # All that the ranks have left is read again only where some of it may be judged.
        if any(self.folder.glob("bare.*")) and (doubt := self.unproved().besides()):
            yield doubt

    def unproved(self) -> Unproved:
        """What the processes had mapped that have not proved anything."""
        expected = self._expected
        sightings = [
            *self._observer.sightings.values(),
            *reported(self.folder, expected.plan, expected.inode, expected.known),
        ]
        last = {(s.host, s.pid): s for s in sightings}  # what a process says itself comes last
        launched, alive = _names(self.folder, "exit"), _names(self.folder, "alive")
        blind, started = blind_ranks(launched, alive), tuple(bare(self.folder))
        cut = tuple(sorted(_names(self.folder, "cut")))
        return Unproved(expected.plan, tuple(last.values()), blind, started, self._ranks, cut)

    def _look_again(self) -> None:
        """Looks at what runs after the proof, now and then: of a rank's later programs only the MPI counts.

        One that starts another MPI by name stops there, and leaves a note.
        """
        self._observer.look(proved=True)
        if self._clock() < self._again:
            return
        self._again = self._clock() + _AGAIN_S
        stopped = any(self.folder.glob("stopped.*"))
        if stopped and (failure := self.unproved().failed(proved=True)):
            raise FairleadError(failure, ExitCode.PROOF_FAILED)

    def _observe(self) -> None:
        """Looks at the processes, and ends a launch that has been on another MPI for long.

        Not at once: a tool that a job begins with may map an MPI that it never starts.
        """
        noted = sum(1 for path in self.folder.glob("bare.*") if path.suffix != ".partial")
        if noted > self._noted:
            self._noted = noted
            self._observer.hurry()
        self._observer.look()
        since = self._observer.since
        late = since is not None and self._clock() - since > self._limit_s * _SKEW
        if (late or any(self.folder.glob("stopped.*"))) and (failure := self.unproved().failed()):
            raise FairleadError(failure, ExitCode.PROOF_FAILED)

    def _judge(self, ranks: Sequence[RankProof]) -> None:
        expected, seconds = self._expected, self._clock() - self._begun
        proof = judged(expected.plan, expected.ranks, expected.inode, ranks, seconds)
        more = (*_images(expected, proof.ranks), *_crowded(expected, proof.ranks))
        self.proof = replace(proof, findings=(*proof.findings, *more))
        if self.proof.holds:
            (self.folder / "proved").touch()  # of a rank's later programs only the MPI is judged
        self._on_proof(self.proof)
        if not self.proof.holds:
            errors = [f for f in self.proof.findings if f.severity is Severity.ERROR]
            raise FairleadError(errors, ExitCode.PROOF_FAILED)

    def _watch(self) -> None:
        started = {kind: _names(self.folder, kind) for kind in ("exit", "alive", "started")}
        launched, alive, inside = started["exit"], started["alive"], started["started"]
        counts = (len(launched), len(alive), len(inside))
        now = self._clock()
        if counts != self._counts:
            self._counts, self._moved = counts, now
        # What a program does between its start and MPI_Init is its own affair, and may take long.
        limit = self._limit_s
        if now - self._moved <= limit:
            return  # the records of ten thousand ranks are read only when something is late
        ended = {end.rank for end in exits(self.folder)}
        if len(alive) >= self._ranks and len(inside | ended) < self._ranks:
            # Some ranks still work while others wait in MPI_Init: allowed, but not forever.
            limit *= _SKEW
        if (len(alive) < self._ranks or inside) and now - self._moved > limit:
            if not inside and len(launched) >= self._ranks and not alive and runs_in_container():
                self._moved = now  # programs without a loader, which loads no witness either
                return
            raise FairleadError(self._stuck(limit, launched, alive, inside), ExitCode.WATCHDOG)

    def _stuck(
        self, limit_s: float, launched: set[str], alive: set[str], inside: set[str]
    ) -> Finding:
        folder, everyone = self.folder, set(map(str, range(self._ranks)))
        ended = {end.rank: signal_name(end.code) for end in exits(folder)}
        parts = []
        for rank, how in list(ended.items())[:4]:
            where = "in" if rank in inside else "before"
            parts.append(f"rank {rank}: {how} {where} MPI_Init{_hosts(folder, {rank})}")
        met = (folder / "world").exists()
        waiting = set() if met else _names(folder, "here") - alive - ended.keys()
        for names, what in (
            (everyone - launched - alive, "never started by the launcher"),
            (waiting, "waits for the addresses of the other ranks"),
            (
                launched - alive - ended.keys() - waiting,
                "started, but the container did not come up",
            ),
            (alive - inside - ended.keys(), "runs and has not called MPI_Init"),
            (inside - ended.keys(), "in MPI_Init"),
        ):
            if names & everyone:
                parts.append(f"rank {_listed(names & everyone)}: {what}{_hosts(folder, names)}")
        if quiet := _quiet_nodes(folder, self._expected.nodes):
            parts.append(f"no rank has reported from {', '.join(quiet[:8])}")
            parts += [f"{host}: {why}" for host, why in unreachable(quiet[:8]).items()]
        if words := last_words(folder):
            parts.append(f"last words: {words}")
        uid = _another_user(folder, inside - ended.keys())
        if uid is not None and self._expected.plan.launcher.family is AbiFamily.OPENMPI:
            return error("watchdog-user", limit_s=limit_s, uid=uid, parts="; ".join(parts))
        return error(
            "watchdog-start-up",
            limit_s=limit_s,
            alive_count=len(alive),
            ranks=self._ranks,
            inside_count=len(inside),
            parts="\n".join(parts),
        )


def _images(expected: Expected, ranks: tuple[RankProof, ...]) -> Iterator[Finding]:
    """Whether every host of the ranks has looked at the image that it opened."""
    hosts = {rank.host for rank in ranks}
    verified = verified_hosts(expected.folder)
    unknown = sorted(hosts - (verified or set()))
    if verified is None:
        if len(hosts) > 1:
            severity = Severity.ERROR if expected.signed else Severity.WARNING
            shown = ", ".join(unknown[:8])
            finding = warning("image-on-nodes-unknown", plan=expected.plan, hosts=shown)
            yield replace(finding, severity=severity)
    elif unknown:
        yield error("image-on-node-unverified", plan=expected.plan, hosts=", ".join(unknown[:8]))


def _crowded(expected: Expected, ranks: tuple[RankProof, ...]) -> Iterator[Finding]:
    """Whether nodes of the job have no rank while another has more than its share, where no shape was requested."""
    used, nodes = by_node(ranks), len(expected.nodes)
    most = max(map(len, used.values()), default=0)
    if not expected.plan.request.shape.filled and 0 < expected.slots < most and len(used) < nodes:
        yield warning(
            "placement-crowded", most=most, slots=expected.slots, idle=nodes - len(used), nodes=nodes,
            launcher_path=expected.plan.launcher.path, seen=places(used),
        )  # fmt: skip


def reports(folder: Path, kind: str) -> list[Path]:
    """What ranks have written down of one kind, and are through with; sorted."""
    return sorted(path for path in folder.glob(f"{kind}.*") if path.suffix != ".partial")


def _names(folder: Path, kind: str) -> set[str]:
    paths = reports(folder, kind)
    if kind == "started":  # without text: it is through with MPI, or has none that can be asked
        with suppress(OSError):
            paths = [path for path in paths if path.stat().st_size]
    return {path.name.partition(".")[2] for path in paths}


def _listed(names: set[str]) -> str:
    return some(sorted(names, key=lambda name: (len(name), name)), 8)


def _another_user(folder: Path, names: set[str]) -> int | None:
    """Whom one of these ranks has become that has changed its user; None where none has."""
    for name in sorted(names):
        with suppress(OSError):
            return (folder / OTHERS / f"started.{name}").stat(follow_symlinks=False).st_uid
    return None


def _named_by(path: Path, word: int = 0) -> str:
    """The node that a report names; empty when it names none."""
    with suppress(OSError, IndexError):
        return path.read_text("utf-8").split()[word]
    return ""


def _hosts(folder: Path, names: set[str]) -> str:
    named = {
        _named_by(folder / f"started.{name}")
        or _named_by(folder / f"alive.{name}")
        or _named_by(folder / f"here.{name}", 1).rpartition(".")[0]
        for name in names
    }
    hosts = sorted(filter(None, named))
    return f" (on {', '.join(hosts[:8])})" if hosts else ""


def _quiet_nodes(folder: Path, nodes: tuple[str, ...]) -> list[str]:
    """The nodes of the job that no rank has named, if any rank has named one of them."""
    reports = (*folder.glob("alive.*"), *folder.glob("started.*"))
    heard = {_named_by(path).partition(".")[0] for path in reports}
    silent = [node for node in nodes if node.partition(".")[0] not in heard]
    return silent if len(silent) < len(nodes) else []


def last_words(folder: Path) -> str:
    """What an MPI printed while it started, on ranks that never left MPI_Init."""
    lines = []
    for path in sorted(folder.glob("said.*")):
        # A line of `=` ends many an account.
        printed = [
            line for line in path.read_text("utf-8", "replace").splitlines() if line.strip(" =")
        ]
        lines += printed[-1:]
    return "; ".join(dict.fromkeys(lines))[-_SAID:]


def read_records(path: Path, folder: Path) -> list[RankProof]:
    """The ranks of one world, as the witness wrote them down."""
    records = []
    data = path.read_bytes()
    if not data or len(data) % _RECORD:
        raise fail("run-folder-proof", path=path, data_count=len(data))
    for part in data.split(b"\0"):
        if part.strip():
            try:
                records.append(_rank(part.decode("utf-8", "replace"), folder, path))
            except (ValueError, LookupError):
                raise fail("run-folder-proof-damaged", path=path) from None
    return records


def _rank(text: str, folder: Path, path: Path) -> RankProof:
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        values.setdefault(key, []).append(value)

    def value_of(key: str) -> str:
        return values.get(key, [""])[0]

    mapped = [value.split(" ", 2) for value in values.get("mpi", ())]
    called = [value.split(" ", 2) for value in values.get("called", ())]
    mapped = [*called, *(m for m in mapped if m[:2] not in [c[:2] for c in called])]
    number = int(values["rank"][0])
    # proof.PID.ME: a name of the process as in its other reports, which is the rank's number as a rule.
    log = folder / f"said.{value_of('launched') or (number or path.name.split('.', 2)[-1])}"
    words = log.read_text("utf-8", "replace") if log.is_file() else ""
    ucx = "\n".join(f"ucp_context {line}" for line in values.get("ucx", ()))
    carried = transports(f"{words}\n{ucx}")
    devices = tuple(sorted(values.get("device", ())))
    by_device = {p for d in devices for start, p in _PROVIDERS.items() if d.startswith(start)}
    if not carried["providers"] and by_device:
        # It reports nothing, and has the fabric's device open. Verbs are also opened only to probe.
        carried = {"netmod": "device", "providers": sorted(by_device)}
    first = mapped[0] if mapped else ["", "0", ""]
    return RankProof(
        rank=number,
        size=int(value_of("size")),
        host=value_of("host"),
        mpi_path=first[2],
        mpi_inode=int(first[1]),
        mpi_count=len(mapped),
        version=" ".join(value_of("version").split()),
        netmod=carried["netmod"],
        providers=tuple(carried["providers"]),
        ring_ok=value_of("ring") == "1" if "ring" in values else None,
        namespaces={name: value_of(name) for name in ("user", "pid", "ipc", "net", "shm")},
        library_path=value_of("library_path"),
        devices=devices,
        others=tuple(value.split(" ", 2)[-1] for value in values.get("other", ())),
        boot=value_of("boot"),
        processors=value_of("processors"),
        online=len(numbers(value_of("online"))),
        launched=value_of("launched"),
        numbered=value_of("numbered"),
    )


_PROVIDERS = {"/dev/cxi": "cxi", "/dev/kgni": "gni", "/dev/hfi1_": "psm2"}
