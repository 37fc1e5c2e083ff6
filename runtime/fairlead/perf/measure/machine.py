"""Steps of a validation that look at the machine: start-up, memory and storage, messages, and who is slow."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fairlead.base.errors import Finding, Severity, fail
from fairlead.base.paths import atomic_write
from fairlead.ml.train.runner import Runner, launch
from fairlead.perf.measure import processors
from fairlead.perf.measure.kernels import worked_of
from fairlead.perf.measure.ranks import messages as sweeps
from fairlead.perf.measure.ranks import stragglers as pairs
from fairlead.perf.measure.search_result import Kind
from fairlead.perf.measure.steps import Seen, Wish, fresh, roomiest
from fairlead.perf.records.evidence import Bound, Culprit
from fairlead.perf.records.validation import Measurement, Way, What

_SOURCES = {
    "memory": "all ranks copying at once, median",
    "disk": "one file written and synced, median",
}
# On a crowded machine a turn of another rank looks like a slow link.
_CROWDED_THRESHOLD = 4.0
# What clocks may differ: nodes that keep time by NTP are within milliseconds.
_CLOCKS_S = 0.5


def start(wish: Wish, way: Way, run: Runner, launcher: str, seen: Seen) -> None:
    """How long until ranks are ready, by phase: of the most ranks that have a core each, for others wait for their turn."""
    phases: dict[str, list[float]] = {}
    repeats = 5 if wish.quick else wish.repeats
    # That of ranks which share cores only tells where they are, and counts for no line.
    alone = wish.crowded(wish.most, 1)
    first = _started(wish, wish.most, run, framework=not alone)
    seen.mpis[way.value] = first["mpi"]
    seen.placed = tuple(first["hosts"])
    if not any(f.check == "validate-clock" for f in seen.findings):
        seen.findings += _clocks(first["clocks"])
    ranks = roomiest(wish, seen)
    told = [first] if ranks == wish.most and not alone else []
    told += [_started(wish, ranks, run) for _ in range(repeats - len(told))]
    for one in told:
        for name, seconds in one["phases"].items():
            phases.setdefault(name, []).append(seconds)
    nodes = seen.nodes(ranks)
    for name, values in phases.items():
        seen.measurements.append(
            Measurement(
                What.START, way, tuple(values), ranks, nodes, subject=name,
                crowded=wish.crowded(ranks, nodes), launcher=launcher,
            )
        )  # fmt: skip


def _started(wish: Wish, ranks: int, run: Runner, framework: bool = True) -> dict[str, Any]:
    """What one launch of so many ranks told."""
    out = fresh(wish.out / "start.json")
    words = ["python3", "-m", "fairlead.perf.measure.ranks.startup", "--out", str(out)]
    if framework and wish.models and not wish.quick:
        words += ["--framework", wish.backend]
    launch(run, ranks, [*words, "--begun", repr(time.time())], [wish.out])
    told: dict[str, Any] = json.loads(out.read_text())
    return told


def _clocks(found: Mapping[str, Sequence[float]]) -> Iterator[Finding]:
    """Clocks that differ by more than a timeline, a log or a lease of a file bears."""
    for host, (ahead, sure) in found.items():
        if abs(ahead) - sure > _CLOCKS_S:
            yield Finding(
                Severity.WARNING,
                f"the clock of {host} is {abs(ahead):.3g} s {'ahead' if ahead > 0 else 'behind'}",
                host,
                f"told by messages to the first rank's host, to within {sure:.2g} s",
                "have the node's clock set (chronyc tracking tells its state); until then times in its logs are off",
                "validate-clock",
            )


def hardware(wish: Wish, way: Way, run: Runner, launcher: str, seen: Seen) -> None:
    """Checkpoints by each way; memory and storage by themselves, which bound the others, by the first."""
    out, folder = fresh(wish.out / "hardware.json"), wish.out / "checkpoints"
    folder.mkdir(exist_ok=True)
    ranks = min(wish.most, wish.cores)
    line = checkpoint_line(wish, way)
    words = [
        "python3",
        "-m",
        "fairlead.perf.measure.ranks.hardware",
        "--out",
        str(out),
        "--folder",
        str(folder),
    ]
    launch(run, ranks, [*words, "--bytes", str(line.bytes)], [wish.out])
    told = json.loads(out.read_text())
    if seen.memory is None:
        seen.memory = Bound(statistics.median(told["memory"]), _SOURCES["memory"])
    if seen.disk is None and told["disk"]:
        seen.disk = Bound(statistics.median(told["disk"]), _SOURCES["disk"])
    if told["checkpoint"]:
        seen.measurements.append(replace(line, samples=tuple(told["checkpoint"])))
    if told["failed"]:
        raise fail(
            "a checkpoint cannot be written",
            where=str(folder),
            why=f"{told['failed']}, with {(line.bytes or 0) >> 20} MiB to write",
            remedy="make room there, or write the report elsewhere: -o FOLDER",
            check="validate-checkpoint",
        )


def checkpoint_line(wish: Wish, way: Way) -> Measurement:
    """The line of checkpoints, without samples."""
    return Measurement(What.CHECKPOINT, way, (), bytes=(16 if wish.quick else 64) << 20)


def messages(wish: Wish, way: Way, run: Runner, launcher: str, seen: Seen) -> None:
    """Messages of all ranks, and for several counts the collectives of each."""
    counts = (wish.most,) if wish.quick else tuple(n for n in wish.ranks if n > 1)
    for ranks in counts:
        if ranks < 2:
            continue
        brief = wish.quick or wish.crowded(ranks, seen.nodes(ranks))
        sizes = sweeps.SIZES[::2] if brief else sweeps.SIZES
        settings = sweeps.Settings(
            out=str(fresh(wish.out / "sweeps.json")),
            sizes=sizes,
            through=("mpi", "comm"),
            repeats=6 if brief else 8,
            limit_s=12 if wish.quick else 45,
        )
        config = wish.out / "sweeps.config.json"
        with atomic_write(config, "w") as stream:
            json.dump(asdict(settings), stream)
        words = ["python3", "-m", "fairlead.perf.measure.ranks.messages", "--config", str(config)]
        launch(run, ranks, words, [wish.out])
        document = json.loads(Path(settings.out).read_text())
        found = sweeps.measurements(document, way, launcher)
        seen.crowded = seen.crowded or document["crowded"]
        seen.measurements += [
            m for m in found if m.what is not What.PINGPONG or ranks == counts[-1]
        ]
        for row in document["wrong_answers"][:3]:
            seen.findings.append(
                Finding(
                    Severity.ERROR,
                    f"{document['wrong']} answers of {ranks} ranks were wrong",
                    f"messages, {way.value}",
                    json.dumps(row),
                    "fairlead doctor; then the same by `--mpi container`, which tells whose MPI it is",
                    "validate-wrong",
                )
            )
            break


def search(wish: Wish, run: Runner, seen: Seen) -> None:
    """Which node, link or processor is slower than its like."""
    crowded = seen.crowded or wish.crowded(wish.most, seen.nodes(wish.most))
    settings = pairs.Settings(
        out=str(fresh(wish.out / "pairs.json")),
        link_threshold=_CROWDED_THRESHOLD if crowded else pairs.Settings.link_threshold,
        repeats=3 if wish.quick else pairs.Settings.repeats,
        limit_s=20 if wish.quick else 120,
    )
    config = wish.out / "pairs.config.json"
    with atomic_write(config, "w") as stream:
        json.dump(asdict(settings), stream)
    words = ["python3", "-m", "fairlead.perf.measure.ranks.stragglers", "--config", str(config)]
    launch(run, wish.most, words, [wish.out])
    document = json.loads(Path(settings.out).read_text())
    seen.clocks = processors.clocks([worked_of(one) for one in document["samples"]], seen.hosts)
    outcome = pairs.outcomes(document)["all"]
    for one in outcome.culprits:
        name = " - ".join(one.names)
        what = {Kind.COMPUTE: "processor of", Kind.LINK: "link of", Kind.PAIR: "path"}[one.kind]
        ranks = f", rank {', '.join(map(str, one.ranks))}" if one.kind is Kind.COMPUTE else ""
        # All that it takes: of a pair both, and for a link another node to talk to.
        nodes = max((seen.hosts.index(n) + 1 for n in one.names if n in seen.hosts), default=1)
        nodes = nodes if one.kind is Kind.COMPUTE else max(nodes, 2)
        only = one.kind is Kind.PAIR and len(seen.hosts) == 2
        against = "the other way" if only else "its like"
        who = f"{what} {name}{ranks}"
        seen.culprits.append(
            Culprit(who, one.evidence, one.times_slower, one.names, nodes, against)
        )
        seen.findings.append(
            Finding(
                Severity.WARNING,
                f"{who} is {one.times_slower:.1f} times slower than {'the other way' if only else 'the others'}",
                name, one.evidence, one.remedy, "validate-slow",
            )
        )  # fmt: skip
