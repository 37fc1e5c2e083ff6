"""Compares a profile with its machine: an update may have moved a library, a device may be gone.

Each value that facts can confirm is ``ok``, ``differs`` or ``not seen``: a login node
has no fabric, and some facts are visible only to root. The status of a value decides the severity of a
difference: for a documented value it is an error, for a guess only a wrong guess.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fairlead.base.errors import Severity
from fairlead.base.system import View
from fairlead.detect.model import MpiFact, SiteFacts
from fairlead.site.model import Origin, Site, Status
from fairlead.site.resolved_paths import expanded, unset


class State(enum.StrEnum):
    """How a value compares."""

    OK = "ok"
    DIFFERS = "differs"
    UNSEEN = "not seen"


@dataclass(frozen=True)
class Compared:
    """One value of a profile, compared with the machine.

    Attributes:
        key: ``section.key`` of the profile.
        wanted: what the profile says.
        seen: what is there, or why it cannot be seen.
        moved_to: where a library is now.
        severity: ``error`` for a value that is documented or was seen to work, else ``warning``; ``ok``
            and ``info`` for the rest.
    """

    key: str
    state: State
    wanted: str
    seen: str
    severity: Severity
    origin: Origin | None
    moved_to: tuple[str, ...] = ()


class _Verdict(NamedTuple):
    """The fields of :class:`Compared` that a check decides."""

    state: State
    wanted: str
    seen: str
    moved_to: tuple[str, ...] = ()


_holds = partial(_Verdict, State.OK)
_differs = partial(_Verdict, State.DIFFERS)
_unseen = partial(_Verdict, State.UNSEEN)


@dataclass(frozen=True)
class Here:
    """A profile, and what it is compared with: the facts, and the machine itself unless they are a capture's."""

    site: Site
    facts: SiteFacts
    world: View | None

    @property
    def environ(self) -> Mapping[str, str]:
        return self.world.environ if self.world else {}

    def glob(self, pattern: str) -> tuple[str, ...]:
        return self.world.matching(expanded(pattern, self.environ)) if self.world else ()

    def libraries(self) -> dict[str, str]:
        """Every library behind the MPIs by its SONAME."""
        libraries: dict[str, str] = {}
        for mpi in self.facts.mpis:
            for soname, path in ((mpi.soname, mpi.path), *mpi.closure.items()):
                libraries.setdefault(soname, path)
        return libraries


def compare(site: Site, facts: SiteFacts, world: View | None = None) -> tuple[Compared, ...]:
    """Compares every value that the files of a profile set and facts can confirm.

    Args:
        world: the machine, for paths; None for a capture, whose facts are all there is.
    """
    here = Here(site, facts, world)
    compared = []
    for key, rule in _RULES.items():
        origin, value = site.origins.get(key), site.value(key)
        if origin is None or not value:
            continue
        for wanted in value if rule.each else (value,):
            verdict = rule.check(here, wanted)
            if verdict is None:
                continue
            state, shown, evidence, moved_to = verdict
            # A family lists what some of its machines have; what a site lists itself must be there.
            some = origin.profile != site.name or site.is_family
            if rule.optional and some and state is State.DIFFERS and not moved_to:
                state = State.UNSEEN
                evidence = f"not here; {origin.profile} lists what some of its machines have"
            severity = _severity(site, state, origin.status)
            compared.append(Compared(key, state, shown, evidence, severity, origin, moved_to))
    return tuple(compared)


def _severity(site: Site, state: State, status: Status) -> Severity:
    if state is not State.DIFFERS:
        return Severity.OK if state is State.OK else Severity.INFO
    # A family describes no particular machine.
    weighs = status in (Status.RUN, Status.DOCUMENTED) and not site.is_family
    return Severity.ERROR if weighs else Severity.WARNING


def _scheduler(here: Here, wanted: str) -> _Verdict:
    kinds = {s.kind: s.seen for s in here.facts.schedulers}
    if wanted in kinds:
        return _holds(wanted, kinds[wanted])
    if wanted == "none" and not kinds:
        return _holds(wanted, "no scheduler")
    return _differs(wanted, "; ".join(kinds.values()) or "no program and no job of it")


def _launchers(here: Here, kinds: tuple[str, ...]) -> _Verdict:
    evidence = {x.kind: x.seen for x in here.facts.launchers}
    for mpi in here.facts.mpis:
        if mpi.launcher:
            evidence.setdefault("mpiexec", mpi.launcher)
    wanted = ", ".join(kinds)
    if present := [evidence[k] for k in kinds if k in evidence]:
        return _holds(wanted, "; ".join(present))
    if here.facts.compute:
        return _differs(wanted, ", ".join(evidence) or "no launcher on PATH")
    return _unseen(wanted, "not on PATH here; a job may have it")


def _pmi(here: Here, flavour: str) -> _Verdict:
    evidence = {p.flavour: p.seen for p in here.facts.pmi}
    if flavour in evidence:
        return _holds(flavour, evidence[flavour])
    listed = any(p.seen.startswith("`srun --mpi=list`") for p in here.facts.pmi)
    if listed and flavour in ("pmi2", "pmix"):
        return _differs(flavour, "`srun --mpi=list` does not name it")
    return _unseen(flavour, "only a rank sees how it was started")


def _engines(here: Here, kinds: tuple[str, ...]) -> _Verdict:
    evidence = {e.kind: f"{e.title}, {e.seen}" for e in here.facts.engines}
    wanted, modules = ", ".join(kinds), here.site.engine.modules
    if present := [evidence[k] for k in kinds if k in evidence]:
        return _holds(wanted, "; ".join(present))
    if modules:
        return _unseen(wanted, f"not on PATH; first: module load {' '.join(modules)}")
    return _differs(wanted, f"there is {', '.join(evidence)}" if evidence else "no engine on PATH")


def _fabric(here: Here, wanted: str) -> _Verdict:
    kinds = {f.profile_kind: f.seen for f in here.facts.fabrics}
    if wanted in kinds:
        return _holds(wanted, kinds[wanted])
    if fast := "; ".join(f"{k}: {v}" for k, v in kinds.items() if k != "ethernet"):
        return _differs(wanted, fast)
    if wanted in ("none", "ethernet"):
        return _holds(wanted, "no fabric device")
    if not here.facts.compute:
        return _unseen(wanted, "a login node may lack it; look from a compute node")
    in_job = " on this node, which is in a job" if here.facts.schedulers else ""
    return _differs(wanted, f"no fabric device{in_job}")


_Search = Callable[["Here", str], tuple[str, ...]]


def _path(here: Here, pattern: str, elsewhere: _Search | None = None) -> _Verdict:
    """A path; ``elsewhere`` finds where one that is gone is now."""
    if paths := here.glob(pattern):
        return _holds(pattern, paths[0])
    if here.world is None:
        return _unseen(pattern, "a capture does not hold paths")
    if variable := unset(pattern, here.environ):
        return _unseen(pattern, f"${variable} is not set; load the modules first")
    return _differs(pattern, "it does not exist", elsewhere(here, pattern) if elsewhere else ())


def _paths(here: Here, pattern: str, elsewhere: _Search | None = None) -> _Verdict:
    """All paths of a pattern."""
    if len(paths := here.glob(pattern)) > 1:
        return _holds(pattern, f"{paths[0]} and {len(paths) - 1} more")
    return _path(here, pattern, elsewhere)


def _any_path(here: Here, patterns: tuple[str, ...]) -> _Verdict:
    """A list of which one path is enough: a plugin's folder has had several names."""
    verdicts = [_path(here, pattern, _siblings) for pattern in patterns]
    order = (State.OK, State.UNSEEN, State.DIFFERS)
    return min(verdicts, key=lambda v: (order.index(v.state), not v.moved_to))


def _interface(here: Here, prefix: str) -> _Verdict:
    """A prefix as NCCL_SOCKET_IFNAME has it."""
    return _on_compute_nodes(here, f"/sys/class/net/{prefix}*")


def _on_compute_nodes(here: Here, pattern: str) -> _Verdict:
    """Paths that need to exist on compute nodes only."""
    verdict = _paths(here, pattern)
    if verdict.state is State.DIFFERS and not here.facts.compute:
        return _unseen(pattern, "not on this node; a compute node may have it")
    return verdict


def _vendor(mpi: MpiFact, wanted: str) -> bool:
    # Some are others' under a name of their own: Spectrum MPI is an Open MPI, to the library's own words.
    return mpi.vendor == wanted or mpi.launcher_title.startswith(wanted)


def _family(mpi: MpiFact, wanted: str) -> bool:
    return mpi.family == {"mpi5": "mpi-abi"}.get(wanted, wanted)


def _mpi(here: Here, wanted: str, fits: Callable[[MpiFact, str], bool]) -> _Verdict:
    for mpi in here.facts.mpis:
        if fits(mpi, wanted):
            return _holds(wanted, mpi.seen)
    others = ", ".join(dict.fromkeys(m.title for m in here.facts.mpis))
    if others:
        return _differs(wanted, f"found: {others}")
    modules = " ".join(here.site.mpi.modules)
    hint = f"first: module load {modules}" if modules else "a module may bring it"
    return _unseen(wanted, f"no MPI was found; {hint}")


def _search(here: Here, pattern: str) -> _Verdict:
    folders = here.glob(pattern)
    beginnings = [f"{f.rstrip('/')}/" for f in folders] if here.world else [pattern.split("*")[0]]
    for mpi in here.facts.mpis:
        if mpi.path.startswith(tuple(beginnings)):
            return _holds(pattern, mpi.path)
    if not folders:
        return _path(here, pattern, _siblings)
    libraries = [path for folder in folders for path in here.glob(f"{folder}/libmpi*.so*")]
    if libraries:
        return _holds(pattern, libraries[0])
    return _differs(pattern, f"{folders[0]} holds no libmpi")


def _mpi_variable(here: Here, name: str) -> _Verdict:
    if value := here.environ.get(name):
        return _holds(f"${name}", value)
    return _unseen(f"${name}", "it is not set; load the modules first")


def _file(here: Here, pattern: str) -> _Verdict:
    soname = pattern.rpartition("/")[2]
    if here.world is None and (now := here.libraries().get(soname)):
        return _differs(pattern, "it was elsewhere", (now,))
    return _path(here, pattern, lambda *_: find_library(here, soname, pattern))


def _expected(here: Here, soname: str) -> _Verdict:
    behind = here.libraries()
    if soname in behind:
        return _holds(soname, behind[soname])
    if here.world is None:
        return _unseen(soname, "not behind a captured MPI")
    if not here.facts.mpis:
        return _unseen(soname, "no MPI was found, so nothing is behind it")
    places = find_library(here, soname, "", here.site.dependencies.folders)
    exact = tuple(p for p in places if p.rpartition("/")[2] == soname)
    if not exact:
        return _differs(soname, "no library of that name is behind its MPI", places)
    if any(soname in mpi.missing for mpi in here.facts.mpis):
        return _differs(soname, "its MPI needs it, and the loader does not find it", exact)
    return _holds(soname, exact[0])


def find_library(
    here: Here, soname: str, was: str = "", folders: Iterable[str] = ()
) -> tuple[str, ...]:
    """Where a library is now: behind the MPIs, in the folders of ld.so, in a sibling version's folder.

    One of the same name comes first; after it those that an update has given another number, as
    ``libjson-c.so.5`` for ``libjson-c.so.3``.
    """
    stem = re.sub(r"\.so[.\d*]*$", "", soname)
    siblings = _siblings(here, was) if was else ()
    if not stem.startswith("lib") or "*" in stem:
        return siblings
    behind = here.libraries()
    if soname in behind:
        return (behind[soname],)
    searched = [*folders, *_loader_folders(here), "/usr/lib64", "/lib64", "/usr/lib/*-linux-gnu", "/usr/lib",
                "/opt/cray/*/default/lib64", "/opt/cray/pe/lib64"]  # fmt: skip
    exact: list[str] = []
    other = [path for name, path in behind.items() if re.sub(r"\.so[.\d]*$", "", name) == stem]
    for folder in dict.fromkeys(searched):
        exact += here.glob(f"{folder.rstrip('/')}/{soname}")
        other += here.glob(f"{folder.rstrip('/')}/{stem}.so.*")
    return tuple(dict.fromkeys([*exact, *siblings] or other))[:3]


def _loader_folders(here: Here) -> Iterator[str]:
    """The folders of /etc/ld.so.conf and what it includes."""
    if here.world is None:
        return
    queue = ["/etc/ld.so.conf"]
    for path in queue:  # grows while it is read
        for line in (here.world.read(path) or "").splitlines():
            words = line.split("#")[0].split()
            if len(words) == 2 and words[0] == "include":
                pattern = words[1] if words[1].startswith("/") else f"/etc/{words[1]}"
                queue += [p for p in here.world.matching(pattern) if p not in queue]
            elif words:
                yield words[0]


def _siblings(here: Here, pattern: str) -> tuple[str, ...]:
    """The path with other versions in it, where the one that it names is gone; the newest first.

    ``/opt/cray/pe/mpich/8.1.29/ofi/gnu/12.3/lib`` finds ``…/8.1.31/ofi/gnu/12.3/lib``.
    """
    parts = pattern.split("/")
    numbered = [i for i, part in enumerate(parts) if re.search(r"\d", part) and "*" not in part]
    for loosened in [[i] for i in reversed(numbered)] + [numbered]:
        tried = [
            re.sub(r"\d+(\.\d+)*", "*", p) if i in loosened else p for i, p in enumerate(parts)
        ]
        if paths := here.glob("/".join(tried)):
            # `default` is a link to one of the others.
            many = len(_numbers(pattern))
            order = sorted(
                paths, key=lambda p: (len(_numbers(p)) >= many, _numbers(p)), reverse=True
            )
            return tuple(order)[:3]
    return ()


def _numbers(path: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", path)]


def _gpu_vendor(here: Here, wanted: str) -> _Verdict:
    evidence = {g.vendor: g.seen for g in here.facts.gpus}
    if wanted in evidence:
        return _holds(wanted, evidence[wanted])
    if evidence:
        return _differs(wanted, "; ".join(evidence.values()))
    if wanted == "none":
        return _holds(wanted, "no GPU")
    if here.facts.compute:
        return _other_node(here, wanted, "no GPU on this node")
    return _unseen(wanted, "a login node may lack it; look from a compute node")


def _gpus(here: Here, wanted: int) -> _Verdict:
    count = sum(g.count for g in here.facts.gpus)
    if count == wanted:
        return _holds(str(wanted), here.facts.gpus[0].seen)
    if here.facts.schedulers:
        return _unseen(str(wanted), f"{count} here; a job may be given some of them only")
    return _other_node(here, str(wanted), str(count))


def _storage(here: Here, wanted: str, shared: bool = False) -> _Verdict | None:
    if not wanted.startswith(("/", "$")):
        return None
    for place in here.facts.storage:
        if place.path == wanted:
            return _holds(wanted, place.seen)
    if variable := unset(wanted, here.environ):
        return _unseen(wanted, f"${variable} is not set; a job may have it")
    return _paths(here, wanted) if shared else _on_compute_nodes(here, wanted)


def _other_node(here: Here, wanted: str, evidence: str) -> _Verdict:
    """What this node has, if the profile describes one kind of node and the site may have several."""
    if len(here.site.scheduler.nodes) > 1:
        return _unseen(wanted, f"{evidence} on this node; the site has several kinds of node")
    return _differs(wanted, evidence)


def _processor(here: Here, targets: tuple[str, ...]) -> _Verdict:
    fact, wanted = here.facts.processor, ", ".join(targets)
    if fact is None or not fact.target:
        return _unseen(wanted, "archspec knows none here")
    if fact.target in targets:
        return _holds(wanted, fact.target)
    if not here.facts.compute:
        return _unseen(wanted, f"{fact.target} on this node; compute nodes may be others")
    return _other_node(here, wanted, f"{fact.target} ({fact.model})")


_OTHER_NODES = "compute nodes may be others than this one"


def _cores(here: Here, wanted: int) -> _Verdict:
    fact = here.facts.processor
    if fact is None or not here.facts.compute:
        return _unseen(str(wanted), _OTHER_NODES)
    if fact.online not in (wanted, 2 * wanted, 4 * wanted):
        return _other_node(here, str(wanted), f"{fact.online} online")
    threads = f", {fact.online // wanted} hardware threads a core" if fact.online > wanted else ""
    return _holds(str(wanted), f"{fact.online} online{threads}")


def _memory(here: Here, gib: float) -> _Verdict:
    fact, wanted = here.facts.processor, f"{gib:g} GiB"
    if fact is None or not fact.memory_bytes or not here.facts.compute:
        return _unseen(wanted, _OTHER_NODES)
    actual = fact.memory_bytes / 2**30
    if 0.85 * gib <= actual <= 1.1 * gib:
        return _holds(wanted, f"{actual:.1f} GiB, without what the kernel keeps")
    return _other_node(here, wanted, f"{actual:.1f} GiB")


class _Rule(NamedTuple):
    """How a key is compared.

    Attributes:
        each: every entry of the list is compared.
        optional: what the list names is used where it exists.
    """

    check: Callable[[Here, Any], _Verdict | None]
    each: bool = False
    optional: bool = False


_versioned = partial(_path, elsewhere=_siblings)  # an update may have changed a version in the path
_RULES: Mapping[str, _Rule] = {
    "scheduler.kind": _Rule(_scheduler),
    "launcher.kinds": _Rule(_launchers),
    "launcher.pmi": _Rule(_pmi, each=True),
    "engine.kinds": _Rule(_engines),
    "fabric.kind": _Rule(_fabric),
    "fabric.interfaces": _Rule(
        lambda here, name: _on_compute_nodes(here, f"/sys/class/net/{name}"),
        each=True,
        optional=True,
    ),
    "fabric.counters": _Rule(_on_compute_nodes, each=True, optional=True),
    "mpi.vendor": _Rule(partial(_mpi, fits=_vendor)),
    "mpi.family": _Rule(partial(_mpi, fits=_family)),
    "mpi.search": _Rule(_search, each=True),
    "mpi.variable": _Rule(_mpi_variable),
    "dependencies.folders": _Rule(_versioned, each=True, optional=True),
    "dependencies.files": _Rule(_file, each=True, optional=True),
    "dependencies.expected": _Rule(_expected, each=True),
    "binds.paths": _Rule(_on_compute_nodes, each=True, optional=True),
    "devices.paths": _Rule(_on_compute_nodes, each=True, optional=True),
    "gpu.vendor": _Rule(_gpu_vendor),
    "gpu.per_node": _Rule(_gpus),
    "gpu.transport": _Rule(partial(_paths, elsewhere=_siblings)),
    "comm.plugin": _Rule(_versioned, each=True),
    "nccl.folders": _Rule(_any_path),
    "nccl.libraries": _Rule(_any_path, optional=True),
    "nccl.files": _Rule(_versioned, each=True, optional=True),
    "nccl.interfaces": _Rule(_interface, each=True, optional=True),
    "storage.shared": _Rule(partial(_storage, shared=True)),
    "storage.node_local": _Rule(_storage),
    "storage.memory": _Rule(_storage),
    "node.processor": _Rule(_processor),
    "node.cores": _Rule(_cores),
    "node.memory_gib": _Rule(_memory),
}
