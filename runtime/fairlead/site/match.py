"""Finds the profile that fits a machine, with the evidence for and against each profile.

A site that the machine matches by a specific clue (a variable, a host name, a cluster name) comes first.
Next comes the family whose evidence is present, the most specific of several: its network's devices, as
:mod:`fairlead.site.fabrics` finds them, or else all of its paths. A machine without scheduler and fabric is
taken for a laptop; a node in a job without a fabric for one of a family without one. Both are guesses, and so is
a site by a clue that no source states; :attr:`Detected.guess` says so. If two profiles fit equally, both are
reported.

Matching reads only names, variables and paths and starts no program, because every launch does it.
"""

from __future__ import annotations

import datetime
import enum
import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.system import Machine, View
from fairlead.base.timeboxed import at_once
from fairlead.schedulers.registry import cluster_names, in_job, in_use, ordered, programs_of
from fairlead.site import fabrics
from fairlead.site.choose import all_sites
from fairlead.site.fabrics import FabricFact
from fairlead.site.model import Clues, Site, Status
from fairlead.site.resolved_paths import expanded

LAST = "laptop"


class Says(enum.StrEnum):
    """What a clue says about a profile: ``nothing`` if another clue of the kind may still match."""

    FOR = "for"
    AGAINST = "against"
    NOTHING = "nothing"


class By(enum.StrEnum):
    """What a profile was found by; the values are shown."""

    NAME = "a clue of its own"
    FAMILY = "the evidence of its family"
    SILENCE = "nothing speaks against it"
    NOTHING = ""


class ClueKind(enum.StrEnum):
    """What a clue is about; the values are the profile's keys."""

    ENVIRON = "environ"
    CLUSTERS = "clusters"
    HOSTNAMES = "hostnames"
    FABRIC = "fabric"
    PRESENT_PATHS = "present_paths"
    ABSENT_PROGRAMS = "absent_programs"
    ABSENT_PATHS = "absent_paths"

    @property
    def key(self) -> str:
        """The profile's ``section.key`` that states it."""
        return "fabric.kind" if self is ClueKind.FABRIC else f"detect.{self}"


# Clues that name one site, and the weight of each: a host name such as nid000001 exists on many machines.
_WEIGHTS = {ClueKind.ENVIRON: 4, ClueKind.CLUSTERS: 4, ClueKind.HOSTNAMES: 2}
_ABSENT = frozenset({ClueKind.ABSENT_PROGRAMS, ClueKind.ABSENT_PATHS})
_OF_FAMILY = frozenset({ClueKind.FABRIC, ClueKind.PRESENT_PATHS})


@dataclass(frozen=True)
class Clue:
    """One clue of a profile, compared with a machine.

    Attributes:
        wanted: what the profile states, e.g. ``/opt/cray/pe``, or ``slingshot``.
        seen: what was found on the machine.
    """

    kind: ClueKind
    wanted: str
    says: Says
    seen: str

    @property
    def what(self) -> str:
        """E.g. ``present_paths: /opt/cray/pe``."""
        return f"{self.kind}: {self.wanted}"


@dataclass(frozen=True)
class Account:
    """A profile compared with a machine.

    Attributes:
        named: summed weight of the matching specific clues; 0 if none matches.
        expired: why its dates exclude today; empty if it is valid.
    """

    site: Site
    clues: tuple[Clue, ...]
    named: int = 0
    expired: str = ""

    def evidence_of(self, what: Says) -> tuple[str, ...]:
        """What was found for the clues that say ``what``."""
        return tuple(clue.seen for clue in self.clues if clue.says == what)

    @property
    def contradicted(self) -> bool:
        """Whether the machine has something that no machine of the profile has."""
        return any(c.says is Says.AGAINST and c.kind in _ABSENT for c in self.clues)

    @property
    def complete(self) -> bool:
        """Whether the machine has all that every machine of the profile has, and nothing that none has.

        The network of a site with a clue of its own is what its profile says: a contradiction is a note.
        """
        named = self.site.detect.named
        noted = {ClueKind.FABRIC} if named else set()
        return not any(c.says is Says.AGAINST and c.kind not in noted for c in self.clues)

    @property
    def supported(self) -> bool:
        """Whether anything of its family was seen."""
        return any(c.says is Says.FOR and c.kind in _OF_FAMILY for c in self.clues)

    @property
    def guessed(self) -> bool:
        """Whether nothing but clues that no source states speaks for it."""
        kinds = {c.kind for c in self.clues if c.says is Says.FOR}
        return all(self.site.status(kind.key) is Status.GUESS for kind in kinds)


@dataclass(frozen=True)
class Detected:
    """The profile that fits, and why.

    Attributes:
        profile: its name; None if none fits or several fit equally (``ties``).
        reasons: the evidence for it.
        notes: caveats for users.
        against: for each other profile, why it was excluded, the strongest reason first.
        guess: nothing that a source states speaks for it.
        candidates: where none fits, the families that nothing contradicts except that they are unproved.
    """

    profile: str | None
    by: By = By.NOTHING
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    against: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    guess: bool = False
    candidates: tuple[str, ...] = ()


def detect(
    environ: Mapping[str, str] = os.environ, world: View | None = None, limit_s: float = 10.0
) -> Detected:
    """Finds the profile of this machine.

    Args:
        limit_s: seconds after which matching gives up with a note, since an unreachable file system
            may never answer.
    Raises:
        FairleadError: exit code 2; a profile is invalid, and it might be the one that fits.
    """
    every = all_sites(environ)
    if every.wrong:
        raise FairleadError(
            [f for findings in every.wrong.values() for f in findings], ExitCode.USAGE
        )
    view = world or Machine(environ)
    matched = at_once({"": lambda: match(view, every.sites)}, limit_s).get("")
    if isinstance(matched, BaseException):
        raise matched
    why = f"no verdict within {limit_s:g} s; `df` shows which hangs"
    return matched or Detected(None, notes=(f"a file system does not answer: {why}",))


def why_not(
    site: Site, environ: Mapping[str, str] = os.environ, world: View | None = None
) -> tuple[str, ...]:
    """What on this machine contradicts a profile; empty if nothing does, or if a specific clue matches."""
    held = account(site, world or Machine(environ))
    if held.named and not held.contradicted:
        return ()
    own = [c.what for c in held.clues if c.kind in _WEIGHTS]
    unnamed = (f"nothing names it: {'; '.join(own)}",) if own and not held.named else ()
    return (*held.evidence_of(Says.AGAINST), *unnamed)


def foreign_network(
    site: Site, environ: Mapping[str, str] = os.environ, world: View | None = None
) -> str:
    """The device of a network that is not the profile's; empty if there is none."""
    clues = _network(site, fabrics.fast(world or Machine(environ)))
    return next((clue.seen for clue in clues if clue.says is Says.AGAINST), "")


def match(world: View, sites: Mapping[str, Site], today: datetime.date | None = None) -> Detected:
    """Finds the profile of a machine among ``sites``."""
    fast = fabrics.fast(world)
    accounts = {name: account(site, world, today, fast) for name, site in sites.items()}
    named = [a for a in accounts.values() if a.named and not _outweighed(a)]
    if named:
        best = max(map(_strength, named))
        chosen, by = [a for a in named if _strength(a) == best], By.NAME
    else:
        chosen, by = _families(world, accounts.values())
    names = {a.site.name for a in chosen}
    left_out = {n: _why_not(a, by) for n, a in accounts.items() if a.site.name not in names}
    if len(chosen) != 1:
        tied = tuple(f"{a.site.name}: {'; '.join(a.evidence_of(Says.FOR))}" for a in chosen)
        possible = tuple(n for n, a in accounts.items() if a.site.is_family and a.complete)
        return Detected(
            None, notes=tied, ties=tuple(sorted(names)), against=left_out, candidates=possible
        )
    [fitting] = chosen
    reasons = fitting.evidence_of(Says.FOR) or _unsupported(world)
    notes = tuple(_notes(fitting))
    guess = by is By.SILENCE or fitting.guessed
    return Detected(fitting.site.name, by, reasons, notes, against=left_out, guess=guess)


def _unsupported(world: View) -> tuple[str, ...]:
    """Reasons for a profile that no clue supports."""
    programs = dict.fromkeys(name for s in ordered() for name in s.programs[:2])
    evidence = [f"`{name}` is on PATH" for name in programs if world.which(name)]
    evidence += (
        [] if in_use(world) else ["no scheduler is configured here" if evidence else "no scheduler"]
    )
    return (*evidence, "no fabric device that a profile knows")


def _outweighed(account: Account) -> bool:
    """Whether a host name is the only evidence, and the machine lacks what every such machine has."""
    return account.named <= _WEIGHTS[ClueKind.HOSTNAMES] and not account.complete


def _strength(account: Account) -> tuple[bool, bool, int]:
    return account.complete, not account.expired, account.named


def _families(world: View, accounts: Iterable[Account]) -> tuple[list[Account], By]:
    fitting = [
        a
        for a in accounts
        if (a.site.is_family or (a.site.detect.present_paths and not a.site.detect.named))
        and a.complete
    ]
    if answers := [a for a in fitting if a.supported]:
        # A family is less specific than the families that extend it.
        below = {name for a in answers for name in a.site.lineage[1:]}
        special = [a for a in answers if a.site.name not in below]
        most = max(len(a.site.detect.present_paths) for a in special)
        best = [a for a in special if len(a.site.detect.present_paths) == most]
        return best, By.FAMILY
    if last := [a for a in fitting if a.site.name == LAST]:
        return last, By.SILENCE
    # A login node may lack the fabric that compute nodes have; a node in a job shows what they have.
    if in_job(world.environ):
        without = [a for a in fitting if not a.site.detect.present_paths and not _has_fabric(a)]
        return without, By.SILENCE
    return [], By.NOTHING


def _has_fabric(account: Account) -> bool:
    stated = any(clue.kind is ClueKind.FABRIC for clue in account.clues)
    return stated and account.site.fabric.kind in fabrics.FAST


def _why_not(account: Account, by: By) -> tuple[str, ...]:
    """Why a profile was excluded."""
    site = account.site
    reasons = [*account.evidence_of(Says.AGAINST)]
    if account.expired:
        reasons.append(account.expired)
    if not site.is_family and not account.named:
        own = "none of its own clues was seen" if site.detect.named else "it has no clue of its own"
        reasons.append(own)
    elif not reasons:
        better = {By.NAME: "another has a clue of its own", By.NOTHING: "nothing speaks for it"}
        reasons.append(better.get(by, "another fits better"))
    return tuple(dict.fromkeys(reasons))


def _notes(account: Account) -> Iterator[str]:
    name = account.site.name
    if account.expired:
        yield f"{name}: {account.expired}"
    for what in account.evidence_of(Says.AGAINST):
        yield f"{name} is named by its own clue, and yet {what}"


def account(
    site: Site,
    world: View,
    today: datetime.date | None = None,
    fast: Mapping[str, FabricFact] | None = None,
) -> Account:
    """Compares every clue of a profile with a machine.

    Args:
        fast: the machine's fast networks, if they are known already.
    """
    clues = site.detect
    own = [*_own(clues, world)]
    named = sum(_WEIGHTS[kind] for kind in {c.kind for c in own if c.says is Says.FOR})
    network = tuple(_network(site, fabrics.fast(world) if fast is None else fast))
    devices = any(c.says is Says.FOR for c in network)
    family = _family(clues, world, stood_in=site.is_family and devices)
    return Account(site, (*own, *network, *family), named, _expired(site, today))


def _network(site: Site, fast: Mapping[str, FabricFact]) -> Iterator[Clue]:
    """The profile's network compared with the devices; nothing where no file states it."""
    if "fabric.kind" not in site.origins:
        return
    kind = site.fabric.kind
    clue = partial(Clue, ClueKind.FABRIC, kind)
    if not fast:
        yield clue(Says.NOTHING, "no fabric device")
        return
    first, device = next(iter(fast.items()))
    evidence = f"{device.device} is {first} ({device.seen})"
    if kind == first:
        yield clue(Says.FOR, evidence)
    elif kind in fast:
        yield clue(Says.NOTHING, f"{fast[kind].device} is {kind}, and {evidence}")
    else:
        yield clue(Says.AGAINST, f"{evidence}, and the profile says {kind}")


def _own(clues: Clues, world: View) -> Iterator[Clue]:
    for name, wanted in clues.environ.items():
        value = world.environ.get(name)
        fits = value is not None and fnmatch.fnmatchcase(value, wanted)
        evidence = f"${name} = {value}" if value is not None else f"${name} is not set"
        yield Clue(ClueKind.ENVIRON, f"{name} = {wanted}", _if(fits), evidence)
    if clues.clusters:
        called = cluster_names(world)
        hits = [f"cluster {n}, {where}" for n, where in called.items() if n in clues.clusters]
        evidence = (
            ", ".join(f"{n} ({where})" for n, where in called.items()) or "no name of a cluster"
        )
        wanted = ", ".join(clues.clusters)
        yield Clue(ClueKind.CLUSTERS, wanted, _if(bool(hits)), hits[0] if hits else evidence)
    if clues.hostnames:
        host = world.hostname
        hit = next((p for p in clues.hostnames if fnmatch.fnmatchcase(host, p)), "")
        wanted = ", ".join(clues.hostnames)
        evidence = f"host name {host}" + (f" is as {hit}" if hit and hit != host else "")
        yield Clue(ClueKind.HOSTNAMES, wanted, _if(bool(hit)), evidence)


def _if(matches: bool) -> Says:
    return Says.FOR if matches else Says.NOTHING


def _family(clues: Clues, world: View, *, stood_in: bool) -> Iterator[Clue]:
    """
    Args:
        stood_in: the network's devices were seen, so that no path need be there.
    """

    def path(kind: ClueKind, pattern: str, there: Says, gone: Says) -> Clue:
        paths = world.matching(expanded(pattern, world.environ))
        evidence = f"{paths[0]} exists" if paths else f"there is no {pattern}"
        return Clue(kind, pattern, there if paths else gone, evidence)

    for pattern in clues.present_paths:
        gone = Says.NOTHING if stood_in else Says.AGAINST
        yield path(ClueKind.PRESENT_PATHS, pattern, Says.FOR, gone)
    for program in clues.absent_programs:
        clue, used = partial(Clue, ClueKind.ABSENT_PROGRAMS, program), in_use(world)
        if not world.which(program):
            yield clue(Says.NOTHING, f"no `{program}` on PATH")
        elif programs_of(program) and not used:
            why = "no scheduler is configured here"
            yield clue(Says.NOTHING, f"`{program}` is on PATH, but {why}")
        else:
            by = f", and there is {used}" if programs_of(program) else ""
            yield clue(Says.AGAINST, f"`{program}` is on PATH{by}")
    for pattern in clues.absent_paths:
        yield path(ClueKind.ABSENT_PATHS, pattern, Says.AGAINST, Says.NOTHING)


def _expired(site: Site, today: datetime.date | None) -> str:
    day = str(today or datetime.date.today())
    if site.until and day > site.until:
        return f"retired: its profile is valid until {site.until}"
    if site.since and day < site.since:
        return f"its profile is valid from {site.since} only"
    return ""
