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

from fairlead.base.errors import Severity
from fairlead.base.system import View
from fairlead.detect.model import SiteFacts
from fairlead.site.match import expanded, unset
from fairlead.site.model import Origin, Site, Status


class State(enum.StrEnum):
    """How a value compares."""

    OK = "ok"
    DIFFERS = "differs"
    UNSEEN = "not seen"


@dataclass(frozen=True)
class Compared:
    """One value held against the machine.

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


@dataclass(frozen=True)
class _Verdict:
    state: State
    wanted: str
    seen: str
    moved_to: tuple[str, ...] = ()


def _holds(wanted: str, seen: str) -> _Verdict:
    return _Verdict(State.OK, wanted, seen)


def _differs(wanted: str, seen: str, moved_to: Iterable[str] = ()) -> _Verdict:
    return _Verdict(State.DIFFERS, wanted, seen, tuple(moved_to))


def _unseen(wanted: str, why: str) -> _Verdict:
    return _Verdict(State.UNSEEN, wanted, why)


class Here:
    """What a profile is held against: the facts, and the machine itself or, for a capture, nothing more."""

    def __init__(self, facts: SiteFacts, world: View | None):
        self.facts = facts
        self.world = world
        self.environ: Mapping[str, str] = world.environ if world else {}

    @property
    def compute(self) -> bool:
        """Whether what compute nodes have must be here: in a job, or where there is no scheduler."""
        schedulers = self.facts.schedulers
        return not schedulers or any(s.job for s in schedulers)

    def glob(self, pattern: str) -> tuple[str, ...]:
        return self.world.matching(expanded(pattern, self.environ)) if self.world else ()

    def libraries(self) -> dict[str, str]:
        """Every library behind the MPIs by its SONAME."""
        found: dict[str, str] = {}
        for mpi in self.facts.mpis:
            found.setdefault(mpi.soname, mpi.path)
            for soname, path in mpi.closure.items():
                found.setdefault(soname, path)
        return found


def compare(site: Site, facts: SiteFacts, world: View | None = None) -> tuple[Compared, ...]:
    """Every value of a profile that can be held against facts.

    Args:
        world: the machine, for paths; None for a capture, whose facts are all there is.
    """
    here = Here(facts, world)
    found = []
    for key, check in _CHECKS:
        if key not in site.origins:
            continue
        origin = site.origins[key]
        for verdict in check(site, here):
            if key in _WHERE_THEY_EXIST and verdict.state is State.DIFFERS and not verdict.moved_to:
                verdict = _of_some(site, origin, verdict)
            severity = _severity(site, verdict.state, origin.status)
            found.append(
                Compared(
                    key,
                    verdict.state,
                    verdict.wanted,
                    verdict.seen,
                    severity,
                    origin,
                    verdict.moved_to,
                )
            )
    return tuple(found)


# Lists of what is taken where it exists.
_WHERE_THEY_EXIST = frozenset(
    {
        "fabric.interfaces",
        "fabric.counters",
        "dependencies.folders",
        "dependencies.files",
        "binds.paths",
        "devices.paths",
    }
)


def _of_some(site: Site, origin: Origin, verdict: _Verdict) -> _Verdict:
    """A family lists what some of its machines have; what a site lists itself must be there."""
    if origin.profile == site.name and not site.is_family:
        return verdict
    return _unseen(
        verdict.wanted, f"not here; {origin.profile} lists what some of its machines have"
    )


def _severity(site: Site, state: State, status: Status) -> Severity:
    if state is State.OK:
        return Severity.OK
    if state is State.UNSEEN:
        return Severity.INFO
    # A family describes no particular machine.
    weighs = status in (Status.RUN, Status.DOCUMENTED) and not site.is_family
    return Severity.ERROR if weighs else Severity.WARNING


def _scheduler(site: Site, here: Here) -> Iterator[_Verdict]:
    wanted, kinds = site.scheduler.kind, {s.kind: s for s in here.facts.schedulers}
    if wanted == "none":
        if kinds:
            yield _differs(wanted, next(iter(kinds.values())).seen)
        else:
            yield _holds(wanted, "no scheduler")
    elif wanted in kinds:
        yield _holds(wanted, kinds[wanted].seen)
    elif kinds:
        yield _differs(wanted, "; ".join(s.seen for s in kinds.values()))
    else:
        yield _differs(wanted, "no program and no job of it")


def _launchers(site: Site, here: Here) -> Iterator[_Verdict]:
    seen = {x.kind: x.seen for x in here.facts.launchers}
    for mpi in here.facts.mpis:
        if mpi.launcher:
            seen.setdefault("mpiexec", mpi.launcher)
    found = [k for k in site.launcher.kinds if k in seen]
    wanted = ", ".join(site.launcher.kinds)
    if found:
        yield _holds(wanted, "; ".join(seen[k] for k in found))
    elif here.compute:
        yield _differs(wanted, ", ".join(seen) or "no launcher on PATH")
    else:
        yield _unseen(wanted, "not on PATH here; a job may have it")


def _pmi(site: Site, here: Here) -> Iterator[_Verdict]:
    seen = {p.flavour: p.seen for p in here.facts.pmi}
    for flavour in site.launcher.pmi:
        if flavour in seen:
            yield _holds(flavour, seen[flavour])
        elif any(p.seen.startswith("`srun --mpi=list`") for p in here.facts.pmi) and flavour in (
            "pmi2",
            "pmix",
        ):
            yield _differs(flavour, "`srun --mpi=list` does not name it")
        else:
            yield _unseen(flavour, "only a rank sees how it was started")


def _engines(site: Site, here: Here) -> Iterator[_Verdict]:
    seen = {e.kind: f"{e.kind} {e.version}".strip() + f", {e.seen}" for e in here.facts.engines}
    found = [k for k in site.engine.kinds if k in seen]
    wanted = ", ".join(site.engine.kinds)
    if found:
        yield _holds(wanted, "; ".join(seen[k] for k in found))
    elif site.engine.modules:
        yield _unseen(wanted, f"not on PATH; first: module load {' '.join(site.engine.modules)}")
    else:
        yield _differs(wanted, f"there is {', '.join(seen)}" if seen else "no engine on PATH")


def _fabric(site: Site, here: Here) -> Iterator[_Verdict]:
    wanted = site.fabric.kind
    same = {"roce": "infiniband", "efa": "ethernet"}
    kinds = {same.get(f.kind, f.kind): f.seen for f in here.facts.fabrics}
    fast = {k: v for k, v in kinds.items() if k != "ethernet"}
    if wanted in kinds:
        yield _holds(wanted, kinds[wanted])
    elif wanted in ("none", "ethernet"):
        if fast:
            yield _differs(wanted, "; ".join(f"{k}: {v}" for k, v in fast.items()))
        else:
            yield _holds(wanted, "no fabric device")
    elif fast:
        yield _differs(wanted, "; ".join(f"{k}: {v}" for k, v in fast.items()))
    elif here.compute and not here.facts.schedulers:
        yield _differs(wanted, "no fabric device")
    elif here.compute:
        yield _differs(wanted, "no fabric device on this node, which is in a job")
    else:
        yield _unseen(wanted, "a login node may lack it; look from a compute node")


def _interfaces(site: Site, here: Here) -> Iterator[_Verdict]:
    yield from _paths(
        here, (f"/sys/class/net/{name}" for name in site.fabric.interfaces), compute_only=True
    )


def _counters(site: Site, here: Here) -> Iterator[_Verdict]:
    yield from _paths(here, site.fabric.counters, compute_only=True)


def _devices(site: Site, here: Here) -> Iterator[_Verdict]:
    yield from _paths(here, site.devices, compute_only=True)


def _binds(site: Site, here: Here) -> Iterator[_Verdict]:
    # They are bound where they exist, and some exist on compute nodes only.
    yield from _paths(here, site.binds, compute_only=True)


def _paths(here: Here, patterns: Iterable[str], compute_only: bool) -> Iterator[_Verdict]:
    for pattern in patterns:
        found = here.glob(pattern)
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            yield _holds(pattern, found[0] + more)
        elif here.world is None:
            yield _unseen(pattern, "a capture does not hold paths")
        elif variable := unset(pattern, here.environ):
            yield _unseen(pattern, f"${variable} is not set; load the modules first")
        elif compute_only and not here.compute:
            yield _unseen(pattern, "not on this node; a compute node may have it")
        else:
            yield _differs(pattern, "it does not exist")


def _vendor(site: Site, here: Here) -> Iterator[_Verdict]:
    wanted = site.mpi.vendor
    if not wanted:
        return
    # Some are others' under a name of their own: Spectrum MPI is an Open MPI, to the library's own words.
    found = [
        m for m in here.facts.mpis if m.vendor == wanted or m.launcher_title.startswith(wanted)
    ]
    if found:
        yield _holds(wanted, found[0].seen)
    else:
        yield from _no_mpi(site, here, wanted)


def _family(site: Site, here: Here) -> Iterator[_Verdict]:
    wanted = site.mpi.family
    if not wanted:
        return
    names = {"mpi5": "mpi-abi"}
    found = [m for m in here.facts.mpis if m.family == names.get(wanted, wanted)]
    if found:
        yield _holds(wanted, found[0].seen)
    else:
        yield from _no_mpi(site, here, wanted)


def _no_mpi(site: Site, here: Here, wanted: str) -> Iterator[_Verdict]:
    found = ", ".join(dict.fromkeys(f"{m.vendor} {m.version}".strip() for m in here.facts.mpis))
    if found:
        yield _differs(wanted, f"found: {found}")
    elif site.mpi.modules:
        yield _unseen(wanted, f"no MPI was found; first: module load {' '.join(site.mpi.modules)}")
    else:
        yield _unseen(wanted, "no MPI was found; a module may bring it")


def _search(site: Site, here: Here) -> Iterator[_Verdict]:
    for pattern in site.mpi.search:
        found = here.glob(pattern)
        own = [m for m in here.facts.mpis if _below(m.path, found)]
        if own:
            yield _holds(pattern, own[0].path)
        elif found:
            libraries = [p for f in found for p in here.glob(f"{f}/libmpi*.so*")]
            if libraries:
                yield _holds(pattern, libraries[0])
            else:
                yield _differs(pattern, f"{found[0]} holds no libmpi")
        elif here.world is None:
            inside = [m.path for m in here.facts.mpis if m.path.startswith(pattern.split("*")[0])]
            yield (
                _holds(pattern, inside[0])
                if inside
                else _unseen(pattern, "a capture does not hold paths")
            )
        elif variable := unset(pattern, here.environ):
            yield _unseen(pattern, f"${variable} is not set; load the modules first")
        else:
            yield _differs(pattern, "it does not exist", _siblings(here, pattern))


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _mpi_variable(site: Site, here: Here) -> Iterator[_Verdict]:
    wanted = site.mpi.variable
    if not wanted:
        return
    if value := here.environ.get(wanted):
        yield _holds(f"${wanted}", value)
    else:
        yield _unseen(f"${wanted}", "it is not set; load the modules first")


def _folders(site: Site, here: Here) -> Iterator[_Verdict]:
    yield from _versioned(here, site.dependencies.folders)


def _plugin(site: Site, here: Here) -> Iterator[_Verdict]:
    yield from _versioned(here, site.comm.plugin)


def _versioned(here: Here, patterns: Iterable[str]) -> Iterator[_Verdict]:
    for pattern in patterns:
        found = here.glob(pattern)
        if found:
            yield _holds(pattern, found[0])
        elif here.world is None:
            yield _unseen(pattern, "a capture does not hold paths")
        elif variable := unset(pattern, here.environ):
            yield _unseen(pattern, f"${variable} is not set; load the modules first")
        else:
            yield _differs(pattern, "it does not exist", _siblings(here, pattern))


def _files(site: Site, here: Here) -> Iterator[_Verdict]:
    for pattern in site.dependencies.files:
        found = here.glob(pattern)
        soname = pattern.rpartition("/")[2]
        if found:
            yield _holds(pattern, found[0])
        elif here.world is None:
            now = here.libraries().get(soname)
            if now:
                yield _differs(pattern, "it was elsewhere", [now])
            else:
                yield _unseen(pattern, "a capture does not hold paths")
        elif variable := unset(pattern, here.environ):
            yield _unseen(pattern, f"${variable} is not set; load the modules first")
        else:
            yield _differs(pattern, "it does not exist", find_library(here, soname, pattern))


def _expected(site: Site, here: Here) -> Iterator[_Verdict]:
    behind = here.libraries()
    lacking = {name for mpi in here.facts.mpis for name in mpi.missing}
    for soname in site.dependencies.expected:
        if soname in behind:
            yield _holds(soname, behind[soname])
        elif here.world is None:
            yield _unseen(soname, "not behind a captured MPI")
        elif not here.facts.mpis:
            yield _unseen(soname, "no MPI was found, so nothing is behind it")
        else:
            places = find_library(here, soname, "", site.dependencies.folders)
            exact = [p for p in places if p.rpartition("/")[2] == soname]
            if exact and soname not in lacking:
                yield _holds(soname, exact[0])
            elif exact:
                yield _differs(soname, "its MPI needs it, and the loader does not find it", exact)
            else:
                yield _differs(soname, "no library of that name is behind its MPI", places)


def find_library(
    here: Here, soname: str, was: str = "", folders: Iterable[str] = ()
) -> tuple[str, ...]:
    """Where a library is now: behind the MPIs, in the folders of ld.so, in a sibling version's folder.

    One of the same name comes first; after it those that an update has given another number, as
    ``libjson-c.so.5`` for ``libjson-c.so.3``.
    """
    stem = re.sub(r"\.so[.\d*]*$", "", soname)
    if not stem.startswith("lib") or "*" in stem:
        return _siblings(here, was) if was else ()
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
    if was:
        exact += _siblings(here, was)
    return tuple(dict.fromkeys(exact or other))[:3]


def _loader_folders(here: Here) -> Iterator[str]:
    """The folders of /etc/ld.so.conf and what it includes."""
    if here.world is None:
        return
    queue, seen = ["/etc/ld.so.conf"], set()
    while queue:
        path = queue.pop(0)
        if path in seen:
            continue
        seen.add(path)
        for line in (here.world.read(path) or "").splitlines():
            words = line.split("#")[0].split()
            if len(words) == 2 and words[0] == "include":
                pattern = words[1] if words[1].startswith("/") else f"/etc/{words[1]}"
                queue += here.world.matching(pattern)
            elif words:
                yield words[0]


def _siblings(here: Here, pattern: str) -> tuple[str, ...]:
    """The same path with another version in the place of one that is gone, the newest first.

    ``/opt/cray/pe/mpich/8.1.29/ofi/gnu/12.3/lib`` finds ``…/8.1.31/ofi/gnu/12.3/lib``.
    """
    parts = pattern.split("/")
    numbered = [i for i, part in enumerate(parts) if re.search(r"\d", part) and "*" not in part]
    for loosened in [[i] for i in reversed(numbered)] + [numbered]:
        tried = [
            re.sub(r"\d+(\.\d+)*", "*", p) if i in loosened else p for i, p in enumerate(parts)
        ]
        if found := here.glob("/".join(tried)):
            # `default` is a link to one of the others.
            many = len(_numbers(pattern))
            order = sorted(
                found, key=lambda p: (len(_numbers(p)) >= many, _numbers(p)), reverse=True
            )
            return tuple(order)[:3]
    return ()


def _numbers(path: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", path)]


def _gpu_vendor(site: Site, here: Here) -> Iterator[_Verdict]:
    wanted, seen = site.gpu.vendor, {g.vendor: g.seen for g in here.facts.gpus}
    if wanted == "none":
        if seen:
            yield _differs(wanted, "; ".join(seen.values()))
        else:
            yield _holds(wanted, "no GPU")
    elif wanted in seen:
        yield _holds(wanted, seen[wanted])
    elif seen:
        yield _differs(wanted, "; ".join(seen.values()))
    elif here.compute:
        yield _other_node(site, wanted, "no GPU on this node")
    else:
        yield _unseen(wanted, "a login node may lack it; look from a compute node")


def _gpus(site: Site, here: Here) -> Iterator[_Verdict]:
    wanted = site.gpu.per_node
    count = sum(g.count for g in here.facts.gpus)
    if not wanted:
        return
    if count == wanted:
        yield _holds(str(wanted), here.facts.gpus[0].seen)
    elif not here.compute or any(s.job for s in here.facts.schedulers):
        yield _unseen(str(wanted), f"{count} here; a job may be given some of them only")
    else:
        yield _other_node(site, str(wanted), str(count))


def _transport(site: Site, here: Here) -> Iterator[_Verdict]:
    if site.gpu.transport:
        yield from _files_of(here, site.gpu.transport)


def _files_of(here: Here, pattern: str) -> Iterator[_Verdict]:
    for verdict in _paths(here, (pattern,), compute_only=False):
        moved = _siblings(here, pattern) if verdict.state is State.DIFFERS else ()
        yield _Verdict(verdict.state, verdict.wanted, verdict.seen, moved)


def _storage(name: str) -> Callable[[Site, Here], Iterator[_Verdict]]:
    def check(site: Site, here: Here) -> Iterator[_Verdict]:
        wanted = str(getattr(site.storage, name))
        if not wanted or not wanted.startswith(("/", "$")):
            return
        known = {s.path for s in here.facts.storage}
        if wanted in known:
            yield _holds(wanted, f"{next(s for s in here.facts.storage if s.path == wanted).seen}")
        elif variable := unset(wanted, here.environ):
            yield _unseen(wanted, f"${variable} is not set; a job may have it")
        else:
            yield from _paths(here, (wanted,), compute_only=name != "shared")

    return check


def _other_node(site: Site, wanted: str, seen: str) -> _Verdict:
    """What this node has, if the profile describes one kind of node and the site may have several."""
    if len(site.scheduler.nodes) > 1:
        return _unseen(wanted, f"{seen} on this node; the site has several kinds of node")
    return _differs(wanted, seen)


def _processor(site: Site, here: Here) -> Iterator[_Verdict]:
    fact, wanted = here.facts.processor, ", ".join(site.node.processor)
    if not wanted:
        return
    if fact is None or not fact.target:
        yield _unseen(wanted, "archspec knows none here")
    elif fact.target in site.node.processor:
        yield _holds(wanted, fact.target)
    elif not here.compute:
        yield _unseen(wanted, f"{fact.target} on this node; compute nodes may be others")
    else:
        yield _other_node(site, wanted, f"{fact.target} ({fact.model})")


def _cores(site: Site, here: Here) -> Iterator[_Verdict]:
    fact, wanted = here.facts.processor, site.node.cores
    if not wanted:
        return
    if fact is None or not here.compute:
        yield _unseen(str(wanted), "compute nodes may be others than this one")
    elif fact.online in (wanted, 2 * wanted, 4 * wanted):
        threads = (
            f", {fact.online // wanted} hardware threads a core" if fact.online > wanted else ""
        )
        yield _holds(str(wanted), f"{fact.online} online{threads}")
    else:
        yield _other_node(site, str(wanted), f"{fact.online} online")


def _memory(site: Site, here: Here) -> Iterator[_Verdict]:
    fact, wanted = here.facts.processor, site.node.memory_gib
    if not wanted:
        return
    if fact is None or not fact.memory_bytes or not here.compute:
        yield _unseen(f"{wanted:g} GiB", "compute nodes may be others than this one")
    elif 0.85 * wanted <= fact.memory_bytes / 2**30 <= 1.1 * wanted:
        yield _holds(
            f"{wanted:g} GiB", f"{fact.memory_bytes / 2**30:.1f} GiB, without what the kernel keeps"
        )
    else:
        yield _other_node(site, f"{wanted:g} GiB", f"{fact.memory_bytes / 2**30:.1f} GiB")


_CHECKS: tuple[tuple[str, Callable[[Site, Here], Iterator[_Verdict]]], ...] = (
    ("scheduler.kind", _scheduler),
    ("launcher.kinds", _launchers),
    ("launcher.pmi", _pmi),
    ("engine.kinds", _engines),
    ("fabric.kind", _fabric),
    ("fabric.interfaces", _interfaces),
    ("fabric.counters", _counters),
    ("mpi.vendor", _vendor),
    ("mpi.family", _family),
    ("mpi.search", _search),
    ("mpi.variable", _mpi_variable),
    ("dependencies.folders", _folders),
    ("dependencies.files", _files),
    ("dependencies.expected", _expected),
    ("binds.paths", _binds),
    ("devices.paths", _devices),
    ("gpu.vendor", _gpu_vendor),
    ("gpu.per_node", _gpus),
    ("gpu.transport", _transport),
    ("comm.plugin", _plugin),
    ("storage.shared", _storage("shared")),
    ("storage.node_local", _storage("node_local")),
    ("storage.memory", _storage("memory")),
    ("node.processor", _processor),
    ("node.cores", _cores),
    ("node.memory_gib", _memory),
)
