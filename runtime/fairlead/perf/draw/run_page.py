"""A run's report on one page that needs nothing else, and as JSON: its figures, what it claims, and on what evidence."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead import __version__
from fairlead.base.comm_waits import TeamWaits
from fairlead.base.errors import Severity
from fairlead.base.paths import atomic_write
from fairlead.base.serde import to_json
from fairlead.base.text import some
from fairlead.bridge.timings import PHASES
from fairlead.ml.task import Gate
from fairlead.ml.train.model import LossPoint
from fairlead.ml.train.result import TrainResult, score_name
from fairlead.perf.draw.charts import BarRow, Figure, Series, bars, chart, linear
from fairlead.perf.draw.compose import ENDED, CommandRun, RankEnd, Report
from fairlead.perf.draw.figures import Bar, legend, split
from fairlead.perf.draw.pages import Number, page
from fairlead.perf.draw.wording import amount, count, duration, percent

SCHEMA = "fairlead/run-report"
SCHEMA_VERSION = 1
_ROWS_SHOWN = 64
_BARS_SHOWN = 16
_AXES = {
    "auc": "area under the ROC curve; 0.5: guessing",
    "accuracy": "share of correct answers",
}


@dataclass(frozen=True)
class Claim:
    """One sentence, whether it holds, and why one may believe it.

    Attributes:
        needed: the run proves nothing when it does not hold; else that is worth a look only.
    """

    holds: bool
    what: str
    evidence: str
    needed: bool = True


@dataclass(frozen=True)
class Verdict:
    """All claims, and the line above them.

    Attributes:
        word: ``ok``, ``warning`` or ``error``.
    """

    word: Severity
    headline: str
    claims: tuple[Claim, ...]


def write_report(folder: Path, report: Report) -> tuple[Path, Path]:
    """Writes ``report.html`` and ``report.json`` into ``folder``; returns their paths.

    Raises:
        FairleadError: jinja2 is not installed.
        OSError: the folder cannot be written.
    """
    html, data = folder / "report.html", folder / "report.json"
    text = render(report)
    payload = {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "fairlead": __version__,
        "verdict": to_json(judge(report)),
        **to_json(report),
    }
    if training := report.training:
        payload["training"] |= {"efficiency": training.efficiency, "scores": training.scores}
    with atomic_write(data, "w") as stream:
        json.dump(payload, stream, indent=2)
    with atomic_write(html, "w") as stream:
        stream.write(text)
    return html, data


def render(report: Report) -> str:
    """The HTML page."""
    training, run = report.training, report.run
    # As many ranks as one can read, those that are wrong first.
    rows = sorted(report.proof, key=lambda row: (row.planned_ok, row.rank))
    ends = sorted(run.ends, key=lambda end: (end.code == 0, end.how == ENDED)) if run else []
    numbers = _numbers(training) if training else _run_numbers(report, run) if run else ()
    done = report.bridge.operations if report.bridge else ()
    return page(
        "run",
        operations=done[-_ROWS_SHOWN:],
        operations_hidden=len(done[:-_ROWS_SHOWN]),
        phases=[name for name in PHASES if any(name in step.phases for step in done)],
        report=report,
        verdict=judge(report),
        figures=figures(training) if training else (),
        numbers=list(numbers),
        shares=_shares(training) if training else (),
        bars=_bars(training) if training else (),
        rows=rows[:_ROWS_SHOWN],
        rows_hidden=len(rows[_ROWS_SHOWN:]),
        ends=ends[:_ROWS_SHOWN],
        ends_hidden=len(ends[_ROWS_SHOWN:]),
        logs=any(end.log for end in ends),
        waited=_waited(run.ends, run.waits) if run else (),
        waits=[_wait_line(waits, run.ends) for waits in run.waits] if run else [],
    )


def judge(report: Report) -> Verdict:
    """The verdict: an error when a claim about the launch or the weights fails, or a finding is
    one; a warning when only learning fell short."""
    claims = (
        *(_ended(report.run) if report.run else ()),
        *_launch(report),
        *(_training(report.training) if report.training else ()),
    )
    failed = [claim for claim in claims if not claim.holds]
    severities = {finding.severity for finding in report.findings}
    if Severity.ERROR in severities or any(claim.needed for claim in failed):
        word = Severity.ERROR
    elif failed or Severity.WARNING in severities:
        word = Severity.WARNING
    else:
        word = Severity.OK
    return Verdict(word, _headline(report, word, failed), claims)


def _headline(report: Report, word: Severity, failed: list[Claim]) -> str:
    run, errors = report.run, [f.what for f in report.findings if f.severity is Severity.ERROR]
    if errors:
        return f"{errors[0][:1].upper()}{errors[0][1:]}."
    if any(claim.needed for claim in failed):
        return "Not proved: see what failed below."
    versions = sorted({row.mpi_version.replace(" Version:", "") for row in report.proof})
    library = versions[0] if versions else "one MPI"
    if run and not report.proof:
        return "It ended well. Which MPI it ran on is not proved."
    if word is Severity.WARNING:
        return f"It ran on {library}, with something to look at."
    return f"It ran on {library}, on {count(report.ranks, 'rank')}, and that is proved."


def _ended(run: CommandRun) -> Iterator[Claim]:
    if not run.ends:
        return
    well = [end for end in run.ends if end.code == 0]
    others: dict[str, list[str]] = {}
    for end in run.ends:
        if end.code != 0:
            others.setdefault(end.how, []).append(end.rank)
    words = [f"{how}: {_ranks(ranks)}" for how, ranks in others.items()]
    yield Claim(
        not others,
        "Every rank ended well",
        "; ".join(
            [f"{len(well)} of {count(len(run.ends), 'rank')} ended with exit code 0", *words]
        ),
    )


def _ranks(names: Sequence[str]) -> str:
    return f"rank{'s' if len(names) > 1 else ''} {some(names, 8)}"


def _launch(report: Report) -> Iterator[Claim]:
    rows = report.proof
    if not rows:
        return
    sizes = {row.size for row in rows}
    yield Claim(
        sizes == {report.ranks} and len(rows) == report.ranks,
        "All ranks found each other",
        f"{len(rows)} ranks reported a world of {_listed(sizes)}; asked for {report.ranks}",
    )
    planned = sum(row.planned_ok and row.mpi_count == 1 for row in rows)
    yield Claim(
        planned == len(rows),
        "Every rank runs on the planned MPI library, and no other",
        f"{planned} of {len(rows)} ranks map the planned file and no other MPI, compared by"
        f" {_listed({row.compared for row in rows})}",
    )
    versions = {row.mpi_version for row in rows}
    yield Claim(
        len(versions) == 1,
        "All ranks run the same MPI version",
        f"MPI_Get_library_version: {_listed(versions)}",
    )


def _training(training: TrainResult) -> Iterator[Claim]:
    weights = training.all.weights
    final = {row.final for row in weights}
    yield Claim(
        len(final) == 1,
        "All ranks hold bit-identical weights",
        f"one sha256 on {len(weights)} ranks after {len(training.all.loss)} steps;"
        f" {len({row.initial for row in weights})} different ones before the broadcast",
    )
    scores, linear_model = training.scores, training.baseline.scores
    learnt, evidence = True, []
    for gate in training.gates:
        score, other = scores[gate.metric], linear_model[gate.metric]
        learnt = learnt and gate.passed(score) and gate.better(score, other)
        evidence.append(
            f"{score_name(gate.metric)} {score:.3f} on {training.baseline.val:,} held-out"
            f" {training.task.sample}s, linear model {other:.3f}, wanted {gate.words}"
        )
    what = "It learnt what a linear model cannot see"
    yield Claim(learnt, what, "; ".join(evidence), needed=False)


def _listed(values: set[int] | set[str]) -> str:
    return ", ".join(sorted(map(str, values)))


def _numbers(training: TrainResult) -> Iterator[Number]:
    ranks, speed = training.all.ranks, training.all.speed
    for gate in training.gates:
        linear_model = f"linear model {training.baseline.scores[gate.metric]:.3f}"
        score = f"{training.scores[gate.metric]:.3f}"
        yield score, score_name(gate.metric), linear_model
    if speed is not None:
        on = f"on {ranks} rank{'s' if ranks > 1 else ''}"
        yield f"{speed.samples_per_s:.0f}", "samples/s", on
    if training.one is not None and training.one.speed is not None:
        alone = f"{training.one.speed.samples_per_s:.0f} samples/s on 1 rank"
        yield percent(training.efficiency), "of ideal", alone


def _run_numbers(report: Report, run: CommandRun) -> Iterator[Number]:
    hosts = sorted({row.host for row in report.proof} or {end.host for end in run.ends} - {""})
    on = f"on {count(len(hosts), 'node')}: {some(hosts)}" if hosts else ""
    yield str(report.ranks), "rank" if report.ranks == 1 else "ranks", on
    if run.seconds is not None:
        amount, _, unit = duration(run.seconds).partition(" ")
        yield amount, unit, "from the launch to its end"
    if run.exit_code:
        yield str(run.exit_code), "exit code", "of fairlead run"
    if waited := _waited(run.ends, run.waits):
        late = min(waited, key=lambda bar: bar.parts[1][2])  # the others wait for it
        share = statistics.median(bar.parts[1][2] / bar.total_ms for bar in waited)
        yield percent(share), "waiting", f"of the usual rank's time, longest for {late.name}"


def _waited(ends: Sequence[RankEnd], teams: Sequence[TeamWaits]) -> tuple[Bar, ...]:
    """Each rank's time, and what of it went into waiting for others; as many ranks as one can read, those that
    wait least first: the others wait for them."""
    spent = {
        end.rank: (end, sum(team.wait_s[int(end.rank)] for team in teams))
        for end in ends
        if end.seconds
        and end.rank.isdecimal()
        and all(int(end.rank) < len(t.wait_s) for t in teams)
    }
    if not teams or len(spent) != len(ends):
        return ()
    longest = max(end.seconds or 0.0 for end, _ in spent.values())
    rows = (
        sorted(spent.values(), key=lambda row: row[1])
        if len(ends) > _BARS_SHOWN
        else spent.values()
    )
    bars = []
    for end, waiting in list(rows)[:_BARS_SHOWN]:
        whole = end.seconds or 0.0
        waiting = min(waiting, whole)
        parts = (("its own work", 1, whole - waiting), ("waiting for other ranks", 5, waiting))
        shown = tuple((i, name, 1000 * s, 100 * s / longest) for name, i, s in parts)
        bars.append(Bar(f"rank {end.rank}", 1000 * whole, shown))
    return tuple(bars)


def _wait_line(team: TeamWaits, ends: Sequence[RankEnd]) -> dict[str, str]:
    """A row of the table of teams."""
    each = team.wait_s or (0.0,)
    last = each.index(min(each))
    host = next((end.host for end in ends if end.rank == str(last)), "")
    return {
        "team": team.team,
        "calls": f"{team.calls:,}",
        "averaged": f"{team.bytes / 1e6:,.3g} MB",
        "least": amount(min(each), "s"),
        "median": amount(statistics.median(each), "s"),
        "most": amount(max(each), "s"),
        "for": f"rank {last}" + (f" on {host}" if host else ""),
    }


def _shares(training: TrainResult) -> list[tuple[str, float, float]]:
    """Parts of the median step of rank 0: name, ms, percent."""
    speed = training.all.speed
    if speed is None:
        return []
    parts = {
        "input": speed.input_s,
        "forward": speed.forward_s,
        "backward": max(speed.compute_s - speed.forward_s - speed.update_s, 0.0),
        "exposed communication": speed.communicate_s,
        "update": speed.update_s,
        "idle": speed.wait_s,
    }
    whole = sum(parts.values())
    return [(name, 1000 * s, 100 * s / whole) for name, s in parts.items()]


def _bars(training: TrainResult) -> tuple[Bar, ...]:
    """The median step of each rank, warm-up left out; of many ranks, of each node."""
    timed = (steps.after(training.all.warmup) for steps in training.all.steps)
    return split([steps for steps in timed if steps.input_s])


def figures(training: TrainResult) -> tuple[Figure, ...]:
    """Those that there are data for."""
    made = [_speed(training)] if training.all.speed is not None else []
    made += [_score(training, gate) for gate in training.gates]
    made.append(_loss(training))
    if training.all.evaluation is not None and training.all.evaluation.roc:
        made.append(_roc(training.all.evaluation.roc))
    return tuple(made)


def _speed(training: TrainResult) -> Figure:
    """Samples per second on 1 rank and on all, and what perfect scaling would give."""
    everyone, ranks = training.all, training.all.ranks
    assert everyone.speed is not None  # the caller checks
    fast = everyone.speed.samples_per_s
    rows = [BarRow(count(ranks, "rank"), fast, f"{fast:.0f}", "a")]
    words = f"{fast:.0f} samples/s on {count(ranks, 'rank')}"
    most, mark = fast, None
    if training.one is not None and training.one.speed is not None:
        slow = training.one.speed.samples_per_s
        rows.append(BarRow("1 rank", slow, f"{slow:.0f}"))
        most, mark = max(fast, ranks * slow), (ranks * slow, "ideal")
        words += (
            f", {slow:.0f} on 1: {percent(training.efficiency)} of ideal,"
            f" each rank with a batch of {everyone.batch} and {count(everyone.threads, 'thread')}"
        )
        if training.efficiency > 1.02:
            words += "; more than ideal means that other work slowed the machine on 1 rank"
    svg = bars(rows, linear(0, 1.05 * most, "samples per second"), words, mark)
    return Figure("Speed", words, svg)


def _score(training: TrainResult, gate: Gate) -> Figure:
    """A score of the network and of the linear model, and the gate between them."""
    network, linear_model = training.scores[gate.metric], training.baseline.scores[gate.metric]
    # An AUC begins at chance; an error of 1 is that of always predicting the mean.
    low = 0.5 if gate.metric == "auc" else 0.0
    title = _AXES.get(gate.metric, f"error of {gate.metric}; 1: always the mean")
    words = (
        f"{network:.3f}; a linear model has {linear_model:.3f} on the same"
        f" {training.baseline.val:,} {training.task.sample}s; wanted: {gate.words}"
    )
    rows = (
        BarRow(training.task.title, network, f"{network:.3f}", "a"),
        BarRow("linear model", linear_model, f"{linear_model:.3f}"),
    )
    axis = linear(low, max(1.0, network, linear_model), title)
    svg = bars(rows, axis, words, (gate.value, f"wanted: {gate.words}"))
    return Figure(f"Held-out {score_name(gate.metric)}", words, svg)


def _loss(training: TrainResult) -> Figure:
    """Loss against time: every step faint, the running mean strong."""
    everyone, points = training.all, training.all.loss
    # What a network that knows nothing pays for classes; regressed parameters have no such line.
    classes = training.gates[0].metric in ("auc", "accuracy")
    guessing = math.log(training.task.network.outputs) if classes else None
    smooth = _running_mean(points, 11)
    # A single wild step must not flatten the curve.
    top, end = 1.15 * max(*smooth, (guessing or 0.0) * 1.2), 1.01 * points[-1].seconds
    each = tuple((point.seconds, min(point.loss, top)) for point in points)
    mean = tuple((point.seconds, loss) for point, loss in zip(points, smooth, strict=True))
    lines = [
        Series("each step", each, "faint", marks=False),
        Series("running mean", mean, "a", marks=False),
    ]
    if guessing is not None:
        lines.append(Series("guessing", ((0.0, guessing), (end, guessing)), "ideal", marks=False))
    last = statistics.fmean(point.loss for point in points[-11:])
    words = (
        f"from {points[0].loss:.2f} to {last:.2f} in {len(points)} steps of"
        f" {everyone.batch * everyone.ranks} {training.task.sample}s"
    )
    svg = chart(linear(0, end, "seconds of training"), linear(0, top, ""), lines, f"Loss {words}")
    return Figure("Loss", words, svg, legend(lines))


def _roc(pairs: Sequence[tuple[float, float]]) -> Figure:
    """Signal kept against background kept."""
    guessing = Series("guessing", ((0.0, 0.0), (1.0, 1.0)), "ideal", marks=False)
    network = Series("network", tuple(pairs), "a", marks=False)
    words = "how much signal is kept for how much background, held-out events"
    x, y = linear(0, 1, "background kept"), linear(0, 1, "signal kept")
    svg = chart(x, y, (guessing, network), words)
    return Figure("ROC", words, svg, legend((network, guessing)))


def _running_mean(points: Sequence[LossPoint], width: int) -> list[float]:
    losses = [point.loss for point in points]
    half = width // 2
    return [statistics.fmean(losses[max(0, i - half) : i + half + 1]) for i in range(len(losses))]
