"""What differs between a recorded run and another: its results first, then what may explain them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.record.model import Before, Code, Data, Ranks, RunRecord

_MOST = 8  # differences of one kind that are listed
# Of a job, not of what its ranks do.
_VOLATILE = ("SLURM_JOB", "SLURM_NTASKS", "SLURM_NNODES", "PBS_JOBID", "PMI_")


class Kind(enum.StrEnum):
    """What differs, in order of importance."""

    RESULT = "result"
    EXIT_CODE = "exit code"
    IMAGE = "image"
    SCRIPT = "script"
    INPUT = "input"
    CODE = "code"
    MPI = "MPI"
    TRANSPORT = "transport"
    LIBRARY = "library"
    RANKS = "ranks"
    VARIABLE = "variable"
    HOST = "host"
    FAIRLEAD = "fairlead"


# The run itself is another one then.
SOURCES = (Kind.IMAGE, Kind.SCRIPT, Kind.INPUT)
OUTCOMES = (Kind.RESULT, Kind.EXIT_CODE)


@dataclass(frozen=True)
class Difference:
    """One thing that differs; ``recorded`` and ``now`` are empty where it was not there."""

    kind: Kind
    name: str
    recorded: str
    now: str

    @property
    def line(self) -> str:
        """In words."""
        return f"{self.name}: {self.recorded or 'not there'} → {self.now or 'not there'}"


def differences(recorded: RunRecord, again: RunRecord) -> tuple[Difference, ...]:
    """All that differs, the most important first."""
    a, b = recorded, again
    results = [
        *data(Kind.RESULT, a.results, b.results),
        *_values(Kind.EXIT_CODE, "", a.outcome.exit_code, b.outcome.exit_code),
        *sources(a.before, b.before),
        *machine(a.before, b.before),
        *_ranks(a.ranks, b.ranks),
    ]
    return ordered(results)


def ordered(changes: Sequence[Difference]) -> tuple[Difference, ...]:
    """The most important first."""
    kinds = list(Kind)
    return tuple(sorted(changes, key=lambda d: kinds.index(d.kind)))


def sources(a: Before, b: Before) -> Iterator[Difference]:
    """What the run is made of: image, script, inputs, commit."""
    yield from image(a, b.image.sha256 or b.image.tree_sha256)
    scripts = tuple(filter(None, [a.script])), tuple(filter(None, [b.script]))
    yield from data(Kind.SCRIPT, *scripts)
    yield from data(Kind.INPUT, a.inputs, b.inputs)
    yield from code(a.code, b.code)


def image(a: Before, now: str) -> Iterator[Difference]:
    """Whether the image is another one, by its digest."""
    yield from _values(Kind.IMAGE, a.image.name, a.image.sha256 or a.image.tree_sha256, now)


def code(a: Code | None, b: Code | None) -> Iterator[Difference]:
    """Whether the commit, or what was changed on top of it, is another."""
    yield from _values(Kind.CODE, "commit", a.title if a else "", b.title if b else "")


def data(kind: Kind, a: Sequence[Data], b: Sequence[Data]) -> Iterator[Difference]:
    """Which files have another content."""
    now = {d.name: d for d in b}
    for entry in a:
        other = now.pop(entry.name, None)
        if not other or other.sha256 != entry.sha256:
            yield Difference(kind, entry.name, _of(entry), _of(other))
    for other in now.values():
        yield Difference(kind, other.name, "", _of(other))


def _of(entry: Data | None) -> str:
    return f"sha256 {entry.sha256[:16]}…, {entry.bytes} bytes" if entry and entry.sha256 else ""


def planned(
    a: Before, mpi: str, host: Mapping[str, str], shell: Mapping[str, str]
) -> Iterator[Difference]:
    """What differs from a plan that is made now.

    Args:
        mpi: its title and mode.
        host: some of the fields of the machine.
        shell: the caller's variables.
    """
    yield from _values(Kind.MPI, "planned", _planned(a), mpi)
    for name, value in host.items():
        yield from _values(Kind.HOST, name, getattr(a.host, name), value)
    yield from _mappings(a.environment.shell, shell)


def _planned(a: Before) -> str:
    return f"{a.mpi.title} ({a.mpi.mode})"


def machine(a: Before, b: Before) -> Iterator[Difference]:
    """Where it runs, and on what."""
    yield from _values(
        Kind.MPI, "planned", f"{a.mpi.title} ({a.mpi.mode})", f"{b.mpi.title} ({b.mpi.mode})"
    )
    for name in (
        "name",
        "os",
        "kernel",
        "arch",
        "processor",
        "site",
        "engine",
        "launcher",
        "scheduler",
    ):
        yield from _values(Kind.HOST, name, getattr(a.host, name), getattr(b.host, name))
    for variables in ("shell", "container"):
        yield from _mappings(getattr(a.environment, variables), getattr(b.environment, variables))
    yield from _values(Kind.FAIRLEAD, "version", a.fairlead, b.fairlead)


def _mappings(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Difference]:
    for name in sorted({*a, *b}):
        if not name.startswith(_VOLATILE):
            yield from _values(Kind.VARIABLE, name, a.get(name, ""), b.get(name, ""))


def _ranks(a: Ranks, b: Ranks) -> Iterator[Difference]:
    yield from _values(Kind.RANKS, "count", a.count, b.count)
    yield from _values(Kind.RANKS, "nodes", len(a.hosts), len(b.hosts))
    yield from _values(Kind.RANKS, "proved", a.proved, b.proved)
    yield from _values(Kind.RANKS, "worlds", "; ".join(a.worlds), "; ".join(b.worlds))
    for name, kind in (
        ("version", Kind.MPI),
        ("transport", Kind.TRANSPORT),
        ("devices", Kind.TRANSPORT),
    ):
        yield from _values(kind, name, _of_groups(a, name), _of_groups(b, name))
    yield from _values(Kind.TRANSPORT, "NCCL", a.nccl, b.nccl)
    before, now = ({library.path: library for library in ranks.libraries} for ranks in (a, b))
    for path in sorted({*before, *now}):
        left, other = before.get(path), now.get(path)
        if left != other:
            yield Difference(Kind.LIBRARY, path, _title(left), _title(other))


def _of_groups(ranks: Ranks, name: str) -> str:
    values = (getattr(group, name) for group in ranks.groups)
    return "; ".join(sorted({v if isinstance(v, str) else ", ".join(v) for v in values} - {""}))


def _title(library: Any) -> str:
    if library is None:
        return ""
    return f"of the {library.source}" + (
        f", sha256 {library.sha256[:16]}…" if library.sha256 else ""
    )


def _values(kind: Kind, name: str, a: object, b: object) -> Iterator[Difference]:
    if a != b:
        yield Difference(kind, name or str(kind), *("" if v is None else str(v) for v in (a, b)))


def lines(changes: Sequence[Difference]) -> Iterator[str]:
    """The differences for people, those of a kind together."""
    for kind in Kind:
        own = [difference for difference in changes if difference.kind is kind]
        for difference in own[:_MOST]:
            yield f"{kind}: {difference.line}" if difference.name != kind else difference.line
        if len(own) > _MOST:
            yield f"{kind}: {len(own) - _MOST} more"
