"""A validation as one page, and beside it as JSON and CSV.

    from fairlead.report.validation import write_validation

    page, document, rows = write_validation(folder, validation)

The page needs nothing else: no script, no font, no picture is loaded, and it prints. :mod:`fairlead.report.figures`
makes its pictures of the measurements, ``validation.html.j2`` sets it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead import __version__
from fairlead.findings import Severity
from fairlead.paths import atomic_write
from fairlead.report import figures
from fairlead.report.rows import ORDER, WORD, as_csv, broken, groups, tables
from fairlead.report.words import amount, count, label, percent, size
from fairlead.report.write import require_tools
from fairlead.validate import documents, stats
from fairlead.validate.model import (
    SCHEMA,
    SCHEMA_VERSION,
    Measurement,
    RankSaw,
    State,
    Validation,
    Way,
    What,
)
from fairlead.validate.verdict import headline, worst

PAGE, DOCUMENT, ROWS = "validation.html", "validation.json", "validation.csv"
_RANKS_SHOWN = 64


@dataclass(frozen=True)
class Number:
    """One figure to see from afar."""

    value: str
    unit: str
    beside: str


@dataclass(frozen=True)
class ProofLine:
    """Ranks in a row that saw the same, and what the first of them saw."""

    ranks: str
    saw: RankSaw


@dataclass(frozen=True)
class EfficiencyRow:
    """One number of ranks; a pair is native and container, empty where there is none."""

    model: str
    ranks: int
    nodes: int
    speed: tuple[str, str]
    share: tuple[str, str]
    ratio: str


def write_validation(folder: Path, validation: Validation) -> tuple[Path, Path, Path]:
    """Writes ``validation.html``, ``.json`` and ``.csv`` into ``folder``; returns their paths.

    Raises:
        FairleadError: jinja2 is not installed.
        OSError: the folder cannot be written.
    """
    paths = (folder / PAGE, folder / DOCUMENT, folder / ROWS)
    page = render(validation)
    documents.write(paths[1], validation, SCHEMA, SCHEMA_VERSION)
    for path, text in ((paths[2], as_csv(validation)), (paths[0], page)):
        with atomic_write(path, "w") as stream:
            stream.write(text)
    return paths


def render(validation: Validation) -> str:
    """The HTML page.

    Raises:
        FairleadError: jinja2 is not installed.
    """
    require_tools("jinja2", "numpy")
    import jinja2

    template = Path(__file__).with_name("validation.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    state = worst(validation.verdicts)
    told = " ".join(v.because for v in validation.verdicts)
    culprits = [c for c in validation.evidence.culprits if c.name not in told]
    well = WORD[State.SLOW] if culprits and state is not State.WRONG else WORD[state]
    called = state.value if well == WORD[state] else "look here"
    if any(fault.severity is Severity.ERROR for fault in validation.faults):
        well, called = "error", state.value if state is State.WRONG else "broken"
    elif validation.faults and state in (State.NORMAL, State.UNKNOWN):
        well, called = WORD[State.SLOW], "look here"
    ranks = _ranks(validation)
    steps_of = next((m for m in validation.measurements if m.key == validation.steps_of), None)
    facts = validation.machine.facts
    drawn = [f for model in figures.models(validation) for f in figures.scaling(validation, model)]
    drawn += filter(None, (figures.bandwidth(validation, w) for w in (What.ALLREDUCE, What.PINGPONG, What.BROADCAST)))  # fmt: skip
    return environment.from_string(template).render(
        v=validation,
        word=well,
        state=called,
        headline=headline(validation),
        counts=[(WORD[s], s.value, n) for s in ORDER if (n := _count(validation, s))],
        numbers=_numbers(validation),
        groups=(*broken(validation), *groups(validation)),
        unknown=_count(validation, State.UNKNOWN),
        culprits=culprits,
        figures=drawn,
        efficiency=_efficiency(validation),
        several=len(figures.models(validation)) > 1,
        bars=figures.split(validation.steps),
        parts=list(validation.steps[0].parts) if validation.steps else [],
        heat=figures.heat_map(validation.steps),
        tables=tables(validation),
        ranks=ranks[:_RANKS_SHOWN],
        ranks_hidden=len(ranks[_RANKS_SHOWN:]),
        steps_of=label(steps_of) if steps_of else "",
        digests={k: x for k, x in facts.items() if _is_digest(k)},
        facts={k: x for k, x in facts.items() if not _is_digest(k)},
        fairlead_version=__version__,
    )


def _count(validation: Validation, state: State) -> int:
    return sum(v.state is state for v in validation.verdicts)


def _is_digest(name: str) -> bool:
    return "digest" in name or "sha256" in name


def _numbers(validation: Validation) -> tuple[Number, ...]:
    found = []
    rows = _efficiency(validation)
    if rows and (most := max(rows, key=lambda r: r.ranks)).ranks > 1:
        share = most.share[1] or most.share[0]
        found.append(Number(share, "of ideal", f"{most.model} on {count(most.ranks, 'rank')}"))
    pairs = _pairs(validation)
    if pairs:
        usual = sorted(pairs)[len(pairs) // 2]
        found.append(
            Number(
                f"{usual:.2f} ×",
                "native time",
                f"in containers, median of {count(len(pairs), 'line')}",
            )
        )
    large = [
        m for m in validation.measurements if m.what is What.ALLREDUCE and m.bytes and m.samples
    ]
    if large:
        m = max(large, key=lambda m: (m.ranks, m.bytes or 0, m.way is Way.CONTAINER))
        rate = (m.bytes or 0) / stats.summarize(m.samples).median
        value, unit = amount(rate, "B/s").split(" ")
        found.append(
            Number(value, unit, f"allreduce of {size(m.bytes or 0)}, {count(m.ranks, 'rank')}")
        )
    return tuple(found)


def _pairs(validation: Validation) -> list[float]:
    """Container over native, of times; of every line that has both."""
    native = {_same(m): m for m in validation.measurements if m.way is Way.NATIVE and m.samples}
    found = []
    for m in validation.measurements:
        if m.way is Way.CONTAINER and m.samples and (twin := native.get(_same(m))):
            ours, theirs = stats.summarize(m.samples).median, stats.summarize(twin.samples).median
            found.append(ours / theirs if m.smaller_is_better else theirs / ours)
    return found


def _same(m: Measurement) -> tuple[object, ...]:
    return (m.what, m.ranks, m.nodes, m.bytes, m.subject, m.launcher, m.crowded)


def _efficiency(validation: Validation) -> tuple[EfficiencyRow, ...]:
    trained = [m for m in validation.measurements if m.what is What.TRAIN and m.samples]
    rows = []
    for model in figures.models(validation):
        mine = [m for m in trained if m.subject == model]
        fewest = {
            w: min((m for m in mine if m.way is w), key=lambda m: m.ranks, default=None)
            for w in Way
        }
        for ranks, nodes in sorted({(m.ranks, m.nodes) for m in mine}):
            here = {m.way: m for m in mine if (m.ranks, m.nodes) == (ranks, nodes)}
            speed, share = [], []
            for way in (Way.NATIVE, Way.CONTAINER):
                m, one = here.get(way), fewest[way]
                speed.append(amount(stats.summarize(m.samples).median, m.unit) if m else "")
                share.append(_share(m, one) if m and one else "")
            rows.append(
                EfficiencyRow(
                    model, ranks, nodes, (speed[0], speed[1]), (share[0], share[1]), _ratio(here)
                )
            )
    return tuple(rows)


def _share(m: Measurement, one: Measurement) -> str:
    fast, base = stats.summarize(m.samples).median, stats.summarize(one.samples).median
    return percent(fast / base / (m.ranks / one.ranks))


def _ratio(here: dict[Way, Measurement]) -> str:
    if Way.NATIVE not in here or Way.CONTAINER not in here:
        return ""
    found = stats.ratio_of_medians(here[Way.CONTAINER].samples, here[Way.NATIVE].samples)
    if found.low is None or found.high is None:
        return f"{found.value:.3f}"
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _ranks(validation: Validation) -> tuple[ProofLine, ...]:
    """What ranks saw, a row for neighbours that saw the same; rows that are wrong come first."""
    proof = validation.proof
    if proof is None:
        return ()

    def seen(p: RankSaw) -> RankSaw:
        return replace(p, rank=0)

    rows = []
    for _, alike in itertools.groupby(proof.ranks, seen):
        ranks = list(alike)
        first, last = ranks[0], ranks[-1]
        name = str(first.rank) if first is last else f"{first.rank}–{last.rank}"
        rows.append(ProofLine(name, first))
    return tuple(sorted(rows, key=lambda row: row.saw.as_planned))
