"""What the loader will find once the host's MPI is in place: which libraries stay, and what they then lack.

A file of an image asks for libraries by name. Names in the staged folder lead to the host's, and so do files that the
host's are bound over; all others stay the image's, with all that they need.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from fairlead.elf.facts import Elf, ImageFacts
from fairlead.elf.mpi_symbols import is_core, is_interface
from fairlead.mpi.host import HostMpi
from fairlead.swap.model import Plan

_COMPONENT = re.compile(r"mca_([a-z0-9]+)_\w+\.so$")


@dataclass(frozen=True)
class Lack:
    """Symbols that a file of the image needs of its MPI and that the host's does not have.

    Attributes:
        at_once: without them it cannot be loaded; otherwise only calls of them end the program.
        library: the library of the image that has them.
    """

    elf: Elf
    symbols: tuple[str, ...]
    at_once: bool
    library: str


@dataclass(frozen=True)
class Twice:
    """One library in two releases: the image's, which ``by`` needs, and the host's. Their symbols mix."""

    image: str
    host: str
    by: str


@dataclass(frozen=True)
class Bare:
    """An interface of the image's MPI that stays, without the components that it opens.

    Components are looked for in the folder of the MPI that is mapped. OpenSHMEM of Open MPI 4 has all of its own there.

    Attributes:
        kinds: of components, of which the host's MPI has none.
    """

    elf: Elf
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Linked:
    """What a process consists of.

    Attributes:
        files: paths of what is loaded from the image.
        needs: how many symbols, beyond the standard's functions, these need of the image's MPI.
        apart: those of them that work only with the image's MPI: its core (Open MPI 6), and OpenSHMEM of another release.
    """

    files: frozenset[str]
    needs: int
    lacks: tuple[Lack, ...]
    twice: tuple[Twice, ...]
    bare: tuple[Bare, ...] = ()
    apart: tuple[str, ...] = ()

    @property
    def unfit(self) -> frozenset[str]:
        """The files that do not work on the host's MPI, or cannot be loaded with it."""
        lacking = {
            lack.elf.path for lack in self.lacks if lack.at_once or not is_interface(lack.elf)
        }
        bare = {interface.elf.path for interface in self.bare}
        return frozenset({*lacking, *bare, *self.apart, *(twice.image for twice in self.twice)})


def link(plan: Plan, host: HostMpi) -> Linked:
    """What the loader will find for a plan's consumers. Facts that say nothing of it add nothing."""
    facts, staged = plan.facts, _staged(plan)
    behind = {
        real
        for e in plan.consumers
        for real in facts.leads.get(e.path, {}).values()
        if real != e.path
    }
    pending = {elf.path: "" for elf in plan.consumers if elf.path not in behind}
    kept: dict[str, str] = {}
    replaced = set(plan.bound)
    while pending:
        path, by = pending.popitem()
        kept[path] = by
        needs = {**facts.leads.get(path, {}), **facts.parts.get(path, {})}
        for name, real in needs.items():
            if name in staged or real in plan.bound:
                replaced.add(real)
            elif real not in kept and real not in {mpi.path for mpi in facts.mpis}:
                pending[real] = path
    lacks = _lacks(facts, host, kept, replaced) if host.symbols else ()
    wanted = [e for e in facts.consumers if e.path in kept]
    asked = {
        n for e in wanted for of in (e.imports, e.calls) for names in of.values() for n in names
    }
    bare = _bare(facts, host, kept)
    twice, apart = _twice(facts, host, kept), _apart(plan, host, kept)
    return Linked(frozenset(kept), len(asked), lacks, twice, bare, apart)


def _staged(plan: Plan) -> set[str]:
    """The names that are found first."""
    if plan.staging is None:
        return set()
    targets = [f.target for f in plan.staging.files] + [link for link, _ in plan.staging.aliases]
    return {PurePosixPath(t).name for t in targets if str(PurePosixPath(t).parent) == "lib"}


def _lacks(
    facts: ImageFacts, host: HostMpi, kept: dict[str, str], replaced: set[str]
) -> tuple[Lack, ...]:
    offered = {name for names in host.symbols.values() for name in names}
    lacks = []
    for elf in facts.consumers:
        for at_once, wanted in ((True, elf.imports), (False, elf.calls)):
            for library, names in wanted.items() if elf.path in kept else ():
                lacking = tuple(sorted(set(names) - offered)) if library in replaced else ()
                lacks += [Lack(elf, lacking, at_once, library)] if lacking else []
    return tuple(lacks)


def _bare(facts: ImageFacts, host: HostMpi, kept: Collection[str]) -> tuple[Bare, ...]:
    offered = {_framework(path) for plugins in host.plugins for path in plugins.files}
    users: dict[str, set[str]] = {}
    for path, needed in facts.leads.items():
        for real in needed.values() if _framework(path) else ():
            users.setdefault(real, set()).add(_framework(path))
    bare = []
    for elf in facts.consumers:
        if elf.path in kept and is_interface(elf):
            lacking = tuple(sorted(users.get(elf.path, set()) - offered))
            bare += [Bare(elf, lacking)] if lacking else []
    return tuple(bare)


def _apart(plan: Plan, host: HostMpi, kept: Collection[str]) -> tuple[str, ...]:
    """Where the inner libraries of two MPIs have other names, their structures differ too; OpenSHMEM works on these."""
    own = [_inner(m.elf) for m in plan.facts.mpis if m.family is host.library.family]
    other = bool(own) and _inner(host.library.elf) not in own
    names = {e.path: e.soname for e in plan.facts.consumers} | {
        real: name for needed in plan.facts.parts.values() for name, real in needed.items()
    }
    bound = set(plan.bound)
    return tuple(
        path
        for path in sorted({*kept} - bound)
        if is_core(names.get(path, "")) or (other and names.get(path, "").startswith("liboshmem."))
    )


def _inner(mpi: Elf) -> frozenset[str]:
    return frozenset(n for n in mpi.needed if n.startswith(("libopen-", "libopen_")))


def _framework(path: str) -> str:
    """``spml`` of ``mca_spml_ucx.so``; empty for what is not a component of Open MPI."""
    match = _COMPONENT.match(PurePosixPath(path).name)
    return match[1] if match else ""


def _twice(facts: ImageFacts, host: HostMpi, kept: dict[str, str]) -> tuple[Twice, ...]:
    """Libraries without symbol versions that image and host have under two names of one stem."""
    own = {real: name for needed in facts.parts.values() for name, real in needed.items()}
    mapped = {host.library.path, *(e.path for e in host.closure)}
    theirs = {_stem(e.name): e for e in host.parts if e.path in mapped and e.path in host.symbols}
    findings = []
    for path in sorted(kept):
        other = theirs.get(_stem(own[path])) if path in own else None
        if other is not None and other.name != own[path]:
            findings.append(Twice(path, other.path, kept[path]))
    return tuple(findings)


def _stem(name: str) -> str:
    return name.partition(".so")[0]
