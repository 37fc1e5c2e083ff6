"""``fairlead project``: from small runs to thousands of nodes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.base.serde import to_json
from fairlead.cli.declare import FILE_HERE, JSON, argument, declared, option
from fairlead.cli.screen import columns, print_json, table, wrap

if TYPE_CHECKING:
    from fairlead.perf.projection.fabrics import Network
    from fairlead.perf.projection.fitting import Band, Point

EPILOG = """\b
Examples:
  fairlead project small-runs.json --fabric slingshot-11
  fairlead project small-runs.json --site cori --nodes 2048 --keep 0.8
  fairlead project validation.json --batch 16 --bandwidth 12.5 --latency 1.5
"""

_ABOVE_0 = click.FloatRange(0, min_open=True)
# As fairlead.perf.projection.cost_model.Algorithm; `--help` must not load NumPy.
ALGORITHMS = ("halving", "ring", "doubling", "tree")

_RANGE = (
    "the range holds what the runs and the fabric leave open, not what the model leaves out: see"
    " docs/explanation/projection.md for how far off it was on published curves"
)


@dataclass(frozen=True, kw_only=True)
class ProjectFlags:
    """The options of ``fairlead project``.

    Attributes:
        bandwidth: GB/s.
        latency: microseconds.
        storage: samples/s.
        size: bytes of gradients.
    """

    nodes: int = option(
        "--nodes", "Largest number of nodes.", default=8192, type=click.IntRange(1, 1 << 20)
    )
    per_node: int = option("--per-node", "Ranks per node.", default=1)
    fabric: str | None = option(
        "--fabric NAME",
        "The network between nodes, one of those listed in docs/explanation/projection.md.",
    )
    site: str | None = option(
        "--site NAME", "Use the network figures measured in this site's profile."
    )
    cards: int = option("--cards", "Network cards per node.", default=1)
    bandwidth: float | None = option(
        "--bandwidth GB/S", "Bandwidth per node, one way; 1 GB is 10**9 bytes.", type=_ABOVE_0
    )
    latency: float | None = option(
        "--latency US", "Latency of a small message, in microseconds.", type=click.FloatRange(0)
    )
    algorithm: str = option(
        "--algorithm",
        "Algorithm of the allreduce between nodes.",
        default="halving",
        type=click.Choice(ALGORITHMS),
    )
    storage: float | None = option(
        "--storage SAMPLES/S",
        "What the shared storage delivers to all ranks together.  [default: unlimited]",
        type=_ABOVE_0,
    )
    keep: float = option(
        "--keep",
        "Report up to how many nodes the efficiency stays above this.",
        default=0.9,
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
    )
    model: str = option("--model NAME", "The model to project, for a validation with several.")
    size: int | None = option(
        "--bytes N", "For a validation: bytes of gradients; not needed for a bundled network."
    )
    batch: int | None = option(
        "--batch N", "Samples per rank and step.  [default: those of the validation's training]"
    )
    as_json: bool = JSON


@click.command(epilog=EPILOG)
@declared
def project(file: Path = argument(type=FILE_HERE), *, flags: ProjectFlags) -> None:
    """Project small runs to many nodes: time of a step, efficiency, and what costs most.

    FILE holds runs of 1, 2, 4, ... ranks: times of computing, communication and input, or a
    validation's rates. Every number comes with its 95 % interval.
    """
    from fairlead.perf.projection import answers, fabrics, fitting, small_runs
    from fairlead.perf.projection.cost_model import Algorithm

    if flags.fabric and flags.site:
        raise click.UsageError("--fabric and --site both name the network")
    network = fabrics.given(
        flags.bandwidth * 1e9 if flags.bandwidth else None,
        flags.latency * 1e-6 if flags.latency is not None else None,
        _network(flags),
    )
    runs = small_runs.read(file, flags.model, flags.size, flags.batch)
    target = fitting.Target(
        network, flags.per_node, Algorithm(flags.algorithm), flags.storage or math.inf
    )
    model = fitting.fit(runs, target, flags.batch)
    synchronous, delayed = model.curve(flags.nodes), model.curve(flags.nodes, delayed=True)
    answered = answers.answer(model, flags.nodes, flags.keep)
    sentences = answers.sentences(answered)
    if flags.as_json:
        document = {
            "fabric": network,
            "synchronous": synchronous,
            "delayed": delayed,
            "answers": answered,
            "sentences": sentences,
            "assumed": model.assumed,
        }
        print_json("project", _finite(to_json(document)))
        return
    click.echo(f"{file.name} on {network.name}: {_words(network)}\n")
    click.echo(_curves(synchronous, delayed))
    _paragraph("", sentences)
    _paragraph("Assumed, since no run shows it:", model.assumed)
    _paragraph("", [_RANGE])


def _curves(synchronous: Sequence[Point], delayed: Sequence[Point]) -> str:
    """A table with a line for each number of nodes."""
    cells = ("step", "efficiency", "costs most")
    rows = [
        (f"{p.nodes:,}", f"{p.ranks:,}", *_cells(p), *_cells(d))
        for p, d in zip(synchronous, delayed, strict=True)
    ]
    return table(rows, ("nodes", "ranks", *cells, f"delayed: {cells[0]}", *cells[1:]))


def _network(flags: ProjectFlags) -> Network | None:
    from fairlead.perf.projection.fabrics import network, of_site
    from fairlead.site import load_site

    if flags.site:
        return of_site(load_site(flags.site, os.environ)).cards(flags.cards)
    return network(flags.fabric).cards(flags.cards) if flags.fabric else None


def _words(network: Network) -> str:
    parts = []
    for known, scale, unit in ((network.bandwidth, 1e9, "GB/s"), (network.latency_s, 1e-6, "us")):
        assert known is not None  # `given` refuses a network without
        low, high = known.value / known.factor / scale, known.value * known.factor / scale
        interval = f" ({low:.3g} to {high:.3g})" if known.factor > 1 else ""
        parts.append(f"{known.value / scale:.3g} {unit}{interval}")
    return ", ".join(parts)


def _cells(point: Point) -> tuple[str, str, str]:
    return _seconds(point.step_s), _percent(point.efficiency), point.dominant


def _seconds(band: Band) -> str:
    scale, unit = (1e3, "ms") if band.value < 1 else (1, "s")
    value, low, high = (f"{v * scale:.3g}" for v in (band.value, band.low, band.high))
    return f"{value} {unit} ({low} to {high})"


def _percent(band: Band) -> str:
    return f"{band.value:.0%} ({100 * band.low:.0f} to {100 * band.high:.0f})"


def _paragraph(title: str, lines: Sequence[str]) -> None:
    if lines:
        click.echo(f"\n{title}" if title else "")
    for line in lines:
        first, *rest = wrap(line, columns() - 2)
        click.echo("\n".join([f"* {first}", *(f"  {more}" for more in rest)]))


def _finite(value: Any) -> Any:
    """Infinity as null: JSON has no word for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value
