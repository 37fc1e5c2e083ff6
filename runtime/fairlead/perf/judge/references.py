"""A site's own references: what its measurements were when it was known to be well.

They are kept as ``NAME.references.json`` next to the user's own profile of the site, ``NAME.toml``
(:mod:`fairlead.site.choose`), so a site engineer can hand both to everybody in ``/etc/fairlead/sites.d``. Like
profiles, those in a later folder come before those in an earlier one; here line by line.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairlead.base.errors import Severity, fail
from fairlead.perf import stats
from fairlead.perf.judge import diagnosis
from fairlead.perf.records import documents
from fairlead.perf.records.validation import Measurement, State, Validation
from fairlead.site import folders

SCHEMA, SCHEMA_VERSION = "fairlead/references", 1
SUFFIX = ".references.json"
_LEAST = 0.05  # what two good days differ by at least, relative to the median


@dataclass(frozen=True)
class Kept:
    """What one line was.

    Attributes:
        key: of the measurement (:attr:`Measurement.key`).
        unit: of ``median``, ``low`` and ``high``.
        low, high: between which another day is normal: the inner half of the samples, the interval of
            their median, and at least 5 % to either side of it.
        repeats: that it was made of.
        crowded: ranks shared cores.
        when: ISO 8601 with time zone.
        run: id of the validation.
    """

    key: str
    unit: str
    median: float
    low: float
    high: float
    repeats: int
    crowded: bool
    when: str
    run: str

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.median <= self.high:
            raise ValueError(f"{self.key}: low, median, high must be above 0 and in this order")
        if self.repeats < stats.FEWEST:
            raise ValueError(f"{self.key}: a reference is made of at least {stats.FEWEST} repeats")


@dataclass(frozen=True)
class References:
    """Of one site.

    Attributes:
        machine: facts of the machine, by the id of the run that they belong to.
    """

    site: str
    values: tuple[Kept, ...] = ()
    machine: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def by_key(self) -> dict[str, Kept]:
        return {kept.key: kept for kept in self.values}


def files(site: str, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where references of ``site`` are, those that come first last."""
    paths = (folder / f"{site}{SUFFIX}" for folder in folders(environ))
    return tuple(path for path in paths if path.is_file())


def load(site: str, environ: Mapping[str, str] = os.environ) -> References:
    """All that is kept for ``site``; empty when there is nothing.

    Raises:
        FairleadError: exit code 2; a file of them is none, with every mistake in it.
    """
    values: dict[str, Kept] = {}
    machine: dict[str, Mapping[str, str]] = {}
    for path in files(site, environ):
        of_file = read(path, site)
        values |= of_file.by_key
        machine |= of_file.machine
    return References(site, tuple(values.values()), machine)


def read(path: Path, site: str | None = None) -> References:
    """One file of references.

    Raises:
        FairleadError: exit code 2; it is none, or another site's.
    """
    references = documents.read(path, References, SCHEMA, SCHEMA_VERSION, "references", _REMEDY)
    counts = Counter(kept.key for kept in references.values)
    if double := sorted(key for key, count in counts.items() if count > 1):
        raise fail("validate-document-duplicates", path=path, double=", ".join(double))
    if site is not None and references.site != site:
        raise fail("validate-document-other-site", path=path, site=references.site, site_2=site)
    return references


_REMEDY = "fix the file, or remove it and save references again: fairlead validate --save-reference"


def make(validation: Validation) -> References:
    """The references that a validation would leave; lines of too few repeats leave none."""
    kept = tuple(
        _kept(m, validation) for m in validation.measurements if len(m.samples) >= stats.FEWEST
    )
    facts = {**validation.machine.facts, "hosts": ", ".join(validation.machine.hosts)}
    return References(validation.machine.site, kept, {validation.id: facts})


def _kept(m: Measurement, validation: Validation) -> Kept:
    median, low, high = stats.interval(m.samples)
    first, third = np.quantile(m.samples, (0.25, 0.75)).tolist()
    return Kept(
        key=m.key,
        unit=m.unit,
        median=median,
        low=min(first, low, median * (1 - _LEAST)),
        high=max(third, high, median * (1 + _LEAST)),
        repeats=len(m.samples),
        crowded=m.crowded,
        when=validation.begun,
        run=validation.id,
    )


def save(
    validation: Validation,
    *,
    crowded_too: bool = False,
    slow_too: bool = False,
    path: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Path, References]:
    """Keeps what was measured as the site's references; lines that were not measured stay as they were.

    Args:
        crowded_too, slow_too: keep also lines whose ranks shared cores, or that are slow by what was expected so
            far.
        path: the file; by default that of the site in the folder that comes first.
    Raises:
        FairleadError: exit code 1; answers were wrong, something broke, ranks shared cores, lines were slow, or the file cannot be
            written.
    """
    site = validation.machine.site
    _fit(validation, crowded_too, slow_too)
    target = path or folders(environ)[-1] / f"{site}{SUFFIX}"
    before = read(target, site) if target.is_file() else References(site)
    new = make(validation)
    values = tuple((before.by_key | new.by_key).values())
    runs = {kept.run for kept in values}
    machine = {run: f for run, f in {**before.machine, **new.machine}.items() if run in runs}
    whole = References(site, values, machine)
    try:
        documents.write(target, whole, SCHEMA, SCHEMA_VERSION)
    except OSError as exc:
        raise fail(
            "reference-save-unwritable", target=target, reason=exc.strerror or str(exc)
        ) from None
    return target, whole


def _fit(validation: Validation, crowded_too: bool, slow_too: bool) -> None:
    def lines(state: State) -> list[str]:
        return [v.key for v in validation.verdicts if v.state is state]

    why, remedy = "", ""
    if wrong := lines(State.WRONG):
        why, remedy = f"wrong answers: {_some(wrong)}", "fairlead doctor"
    elif broken := [f.what for f in validation.faults if f.severity is Severity.ERROR]:
        why, remedy = f"something broke: {_some(broken)}", "fix that first"
    elif not any(len(m.samples) >= stats.FEWEST for m in validation.measurements):
        why = f"no line has {stats.FEWEST} repeats or more"
        remedy = "the same command with more repeats"
    elif busy := diagnosis.unjudgeable(validation.evidence):
        why, remedy = (
            busy.text,
            "measure on nodes of your own; or --despite-load, where the load is usual",
        )
    elif not crowded_too and (crowd := [m.key for m in validation.measurements if m.crowded]):
        why = f"ranks shared cores, so the machine was not at its best: {_some(crowd)}"
        remedy = "fewer ranks; or --save-crowded, where that is what you run"
    elif not slow_too and (slow := lines(State.SLOW)):
        why = f"slower than what was expected so far: {_some(slow)}"
        remedy = "fix that first; or --save-slow, where it is the new normal"
    if why:
        raise fail("reference-save-refused", validation_id=validation.id, why=why, remedy=remedy)


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return "; ".join(keys[:3]) + more
