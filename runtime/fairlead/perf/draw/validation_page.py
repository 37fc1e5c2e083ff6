"""A validation as one page, and as JSON and CSV.

    from fairlead.perf.draw.validation_page import write_validation

    page, document, rows = write_validation(folder, validation)

The page needs nothing else: no script, no font, no picture is loaded, and it prints. :mod:`fairlead.perf.draw.figures`
makes its pictures of the measurements, ``validation.html.j2`` sets it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.base.errors import Severity
from fairlead.base.paths import atomic_write
from fairlead.base.text import some
from fairlead.perf import stats
from fairlead.perf.draw import figures
from fairlead.perf.draw.pages import Number, page
from fairlead.perf.draw.tables import ORDER, WORD, as_csv, broken, groups, tables
from fairlead.perf.draw.wording import amount, count, label, model_title, percent, size
from fairlead.perf.judge.verdict import conclusive, headline, without_way, worst
from fairlead.perf.records import documents
from fairlead.perf.records.validation import (
    SCHEMA,
    SCHEMA_VERSION,
    Clock,
    Measurement,
    RankSaw,
    State,
    Validation,
    Way,
    What,
)

PAGE, DOCUMENT, ROWS = "validation.html", "validation.json", "validation.csv"
_RANKS_SHOWN = 64
_FEW = 12  # lines that are all shown at once


@dataclass(frozen=True)
class EfficiencyRow:
    """One number of ranks; strings are empty where there is nothing.

    Attributes:
        where: the nodes, where there are several, and whether ranks share cores.
        native, container: speed in samples/s, and its share of ideal.
        ratio: of container over native, and its interval.
    """

    ranks: int
    where: str
    crowded: bool
    native: tuple[str, str]
    container: tuple[str, str]
    ratio: tuple[str, str]


def write_validation(folder: Path, validation: Validation) -> tuple[Path, Path, Path]:
    """Writes ``validation.html``, ``.json`` and ``.csv`` into ``folder``; returns their paths.

    Raises:
        FairleadError: jinja2 is not installed.
        OSError: the folder cannot be written.
    """
    paths = (folder / PAGE, folder / DOCUMENT, folder / ROWS)
    html = render(validation)
    documents.write(paths[1], validation, SCHEMA, SCHEMA_VERSION)
    for path, text in ((paths[2], as_csv(validation)), (paths[0], html)):
        with atomic_write(path, "w") as stream:
            stream.write(text)
    return paths


def render(validation: Validation) -> str:
    """The HTML page."""
    state, states = worst(validation.verdicts), Counter(v.state for v in validation.verdicts)
    reasons = " ".join(v.because for v in validation.verdicts)
    culprits = [c for c in validation.evidence.culprits if c.name not in reasons]
    well = WORD[State.SLOW] if culprits and state is not State.WRONG else WORD[state]
    called = state.value if well == WORD[state] else "look here"
    if state is State.SLOW and not conclusive(validation.verdicts):
        called = "look here"
    if any(fault.severity is Severity.ERROR for fault in validation.faults):
        well, called = "error", state.value if state is State.WRONG else "broken"
    elif validation.faults and state in (State.NORMAL, State.UNKNOWN):
        well, called = WORD[State.SLOW], "look here"
    facts = validation.machine.facts
    trained = figures.trained(validation)
    drawn = [f for model, rows in trained.items() for f in figures.scaling(model, rows)]
    for what in (What.ALLREDUCE, What.PINGPONG, What.BROADCAST):
        drawn += figures.bandwidths(validation, what)
    lines = tables(validation)
    ranks = _ranks(validation)
    efficiency = _efficiency(trained)
    heat = figures.heat_map(validation.steps)
    sections = (
        ("figures", "curves", drawn),
        ("efficiency", "efficiency", efficiency),
        ("split", "a step's time", validation.steps),
        ("steps", "ranks × steps", heat),
        ("lines", "all lines", lines),
        ("proof", "proof", ranks),
        ("environment", "environment", True),
        ("repeat", "repeat it", True),
    )
    steps_of = next((m for m in validation.measurements if m.key == validation.steps_of), None)
    return page(
        "validation",
        v=validation,
        word=well,
        state=called,
        headline=headline(validation),
        counts=[(WORD[s], s.value, states[s]) for s in ORDER if states[s]],
        numbers=list(_numbers(validation, efficiency)),
        groups=(*broken(validation), *groups(validation)),
        unknown=states[State.UNKNOWN],
        culprits=culprits,
        figures=drawn,
        efficiency=efficiency,
        bars=figures.split(validation.steps),
        parts=figures.parts(validation.steps),
        heat=heat,
        tables=lines,
        few=sum(len(table.rows) for table in lines) <= _FEW,
        sections=[(key, name) for key, name, content in sections if content],
        ranks=ranks[:_RANKS_SHOWN],
        ranks_hidden=len(ranks[_RANKS_SHOWN:]),
        steps_of=label(steps_of) if steps_of else "",
        hosts=_hosts(validation.machine.hosts),
        clocks=_clocks(validation.evidence.clocks),
        digests={k: x for k, x in facts.items() if _is_digest(k)},
        facts={k: x for k, x in facts.items() if not _is_digest(k)},
    )


def _hosts(names: Sequence[str], most: int = 16) -> str:
    """All of a few; of many the first and the last."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{count(len(names), 'host')}, {names[0]} to {names[-1]}"


def _clocks(clocks: Sequence[Clock]) -> str:
    """What the processors reported while ranks computed."""
    rates = [c.seen_mhz for c in clocks if c.seen_mhz]
    sold = sorted({c.nominal_mhz for c in clocks if c.nominal_mhz})
    hot = [f"{c.host} {count(c.throttled, 'time')}" for c in clocks if c.throttled]
    words = []
    if rates:
        low, high = f"{min(rates):,.0f}", f"{max(rates):,.0f}"
        words.append(f"{low if low == high else f'{low} to {high}'} MHz while ranks computed")
        words[0] += f", {' and '.join(f'{mhz:,.0f}' for mhz in sold)} nominal" if sold else ""
    if hot:
        words.append(f"slowed down for heat: {some(hot)}")
    elif any(c.throttled is not None for c in clocks):
        words.append("none was slowed down for heat")
    return "; ".join(words) or "cannot tell: no clock and no counter of heat could be read"


def _is_digest(name: str) -> bool:
    return "digest" in name or "sha256" in name


def _numbers(
    validation: Validation, efficiency: Mapping[str, Sequence[EfficiencyRow]]
) -> Iterator[Number]:
    for model, every in list(efficiency.items())[:1]:
        # Ranks that share a core say nothing about scaling.
        rows = [r for r in every if not r.crowded and r.ranks > 1] or every[1:]
        if rows:
            most = rows[-1]
            title = f"{model} on {count(most.ranks, 'rank')}"
            title += ", sharing cores" if most.crowded else ""
            yield most.container[1] or most.native[1], "of ideal", title
    if pairs := sorted(_pairs(validation)):
        usual = f"{pairs[len(pairs) // 2]:.2f} ×"
        lines = count(len(pairs), "line")
        yield usual, "native time", f"in containers, median of {lines}"
    kind = What.ALLREDUCE
    large = [m for m in validation.measurements if m.what is kind and m.bytes and m.samples]
    if large:
        m = max(large, key=lambda m: (not m.crowded, m.ranks, m.bytes or 0, m.way is Way.CONTAINER))
        rate = (m.bytes or 0) / stats.summarize(m.samples).median
        value, unit = amount(rate, "B/s").split(" ")
        yield value, unit, f"allreduce of {size(m.bytes or 0)}, {count(m.ranks, 'rank')}"


def _pairs(validation: Validation) -> list[float]:
    """Container over native, of times; of every line that has both."""
    native = {
        without_way(m): m for m in validation.measurements if m.way is Way.NATIVE and m.samples
    }
    ratios = []
    for m in validation.measurements:
        if m.way is Way.CONTAINER and m.samples and (twin := native.get(without_way(m))):
            ours, theirs = stats.summarize(m.samples).median, stats.summarize(twin.samples).median
            ratios.append(ours / theirs if m.smaller_is_better else theirs / ours)
    return ratios


def _efficiency(
    trained: Mapping[str, Mapping[Way, Sequence[Measurement]]],
) -> dict[str, list[EfficiencyRow]]:
    models = {}
    for model, ways in trained.items():
        rows = []
        points: dict[tuple[int, int], dict[Way, Measurement]] = {}
        for m in itertools.chain(*ways.values()):
            points.setdefault((m.ranks, m.nodes), {})[m.way] = m
        for ranks, nodes in sorted(points):
            here = points[ranks, nodes]
            crowded = any(m.crowded for m in here.values())
            notes = [f"{nodes} nodes"] * (nodes > 1) + ["sharing cores"] * crowded
            # An image by its own MPI stands where a container does: both are never measured.
            inside = Way.CONTAINER if Way.CONTAINER in here else Way.IMAGE
            native, container = (
                _speed(here[way], ways[way][0]) if way in here else ("", "")
                for way in (Way.NATIVE, inside)
            )
            where, ratio = ", ".join(notes), _ratio(here)
            rows.append(EfficiencyRow(ranks, where, crowded, native, container, ratio))
        models[model_title(model)] = rows
    return models


def _speed(m: Measurement, one_rank: Measurement) -> tuple[str, str]:
    """The speed, and its share of what ``one`` promises."""
    fast, base = stats.summarize(m.samples).median, stats.summarize(one_rank.samples).median
    share = percent(fast / base / (m.ranks / one_rank.ranks))
    return amount(fast, m.unit).partition(" ")[0], share


def _ratio(here: dict[Way, Measurement]) -> tuple[str, str]:
    if Way.NATIVE not in here or Way.CONTAINER not in here:
        return "", ""
    ratio = stats.ratio_of_medians(here[Way.CONTAINER].samples, here[Way.NATIVE].samples)
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}", ""
    return f"{ratio.value:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}"


def _ranks(validation: Validation) -> list[tuple[str, str, RankSaw]]:
    """Neighbours that saw the same, their hosts, and what the first of them saw; rows that are wrong come first."""
    proof = validation.proof
    if proof is None:
        return []

    def observed(p: RankSaw) -> RankSaw:
        return replace(p, rank=0, host="")

    rows = []
    for _, same in itertools.groupby(proof.ranks, observed):
        ranks = list(same)
        first, last = ranks[0], ranks[-1]
        name = str(first.rank) if first is last else f"{first.rank}–{last.rank}"
        hosts = tuple(dict.fromkeys(r.host for r in ranks))
        rows.append((name, _hosts(hosts, 3), first))
    return sorted(rows, key=lambda row: row[2].as_planned)
