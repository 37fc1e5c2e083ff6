"""The generated sections of ``docs/explanation/projection.md``: fabrics, and how far off the model is on published curves.

``python -m tools.projection_page`` writes them between their marks; a test compares. With ``--all`` it prints
every prediction and every fitted constant instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tools import published_scaling
from tools.published_scaling import CASES, Fitted, Predicted

from fairlead.base.paths import atomic_write, checkout
from fairlead.perf.projection.fabrics import NETWORKS, Known

PAGE = Path("docs/explanation/projection.md")


def sections() -> dict[str, str]:
    """Markdown by the name of the section."""
    return {
        "fabrics": fabrics(),
        "errors": errors(),
        "verdict": verdict(),
    }


def render(text: str) -> str:
    """The page with its sections regenerated."""
    for name, body in sections().items():
        begin, end = f"<!-- made: {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no section between `{begin.strip()}` and `{end}`")
        text = f"{before}{begin}{body}{end}{after}"
    return text


def fabrics() -> str:
    """What is known of networks."""
    rows = []
    for one in NETWORKS.values():
        sources = [k.source for k in (one.bandwidth, one.latency_s) if k]
        rows.append(
            (
                f"`{one.name}`",
                _known(one.bandwidth, 1e9, "GB/s"),
                _known(one.latency_s, 1e-6, "us"),
                "; ".join(dict.fromkeys("; ".join(sources).split("; "))) or "give both numbers",
            )
        )
    return _table(("fabric", "bandwidth of a card", "latency", "source"), rows)


def _known(value: Known | None, scale: float, unit: str) -> str:
    if value is None:
        return "unknown"
    low, high = value.value / value.factor / scale, value.value * value.factor / scale
    return f"{value.value / scale:.3g} ({low:.3g} to {high:.3g}) {unit}"


def errors() -> str:
    """By case: every blind prediction of it together, and the one without a fit."""
    blind = [one for choice in published_scaling.blind() for one in choice.blind]
    unfitted = {one.case.what: one for one in published_scaling.fit(()).predicted}
    rows = []
    for case in CASES:
        of_case = [one for one in blind if one.case is case]
        values = [100 * one.value for one in of_case]
        held = sum(one.within for one in of_case)
        rows.append(
            (
                case.what,
                f"{case.efficiency:.0%}",
                f"{min(values):.0f} to {max(values):.0f}%",
                f"{np.mean([abs(one.error) for one in of_case]):.0f}",
                f"{held} of {len(of_case)}",
                f"{unfitted[case.what].value:.0%}",
            )
        )
    head = (
        "case",
        "published",
        "predicted blind",
        "mean error, points",
        "in the band, ±3 points",
        "without a fit",
    )
    return _table(head, rows)


def every_prediction() -> str:
    """All six choices, and nothing fitted at all; then the constants of each choice."""
    rows = []
    for one in (*published_scaling.blind(), published_scaling.fit(())):
        name = " + ".join(one.figures) or "nothing"
        for number, blind in enumerate(one.blind):
            rows.append((name if number == 0 else "", *_row(blind)))
    head = (
        "fitted on",
        "predicted blind",
        "published",
        "predicted (95 %)",
        "error, points",
        "in the band, ±3 points",
    )
    return _table(head, rows) + "\n" + _constants(published_scaling.blind())


def _row(one: Predicted) -> Sequence[str]:
    return (
        one.case.what,
        f"{one.case.efficiency:.0%}",
        f"{one.value:.0%} ({100 * one.low:.0f} to {100 * one.high:.0f})",
        f"{one.error:+.0f}",
        "yes" if one.within else "**no**",
    )


def _constants(choices: Iterable[Fitted]) -> str:
    rows = [
        (
            " + ".join(one.figures),
            f"{one.constants.overlap:.2f}",
            f"{one.constants.link_use:.2f}",
            f"{one.constants.deviation:.1%}",
        )
        for one in choices
    ]
    head = (
        "fitted on",
        "overlap",
        "time of a byte over its link's rate",
        "deviation of a rank's step",
    )
    return _table(head, rows)


def verdict() -> str:
    """The errors in one paragraph, good or bad."""
    blind = [one for choice in published_scaling.blind() for one in choice.blind]
    off = np.array([abs(one.error) for one in blind])
    worst = max(blind, key=lambda one: abs(one.error))
    guess = np.abs(published_scaling.guesses())
    prior = [abs(one.error) for one in published_scaling.fit(()).predicted]
    held = sum(one.within for one in blind)
    return (
        f"Predicted blind, the model is off by **{off.mean():.0f} points of efficiency** in the mean of {len(blind)} predictions, "
        f"{np.median(off):.0f} in their median, {off.max():.0f} at worst ({worst.case.what}, fitted on others). "
        f"Without any fit it would be off by {np.mean(prior):.0f}; the mean of the two fitted figures is off "
        f"by {guess.mean():.0f}, at worst {guess.max():.0f}. Of bands that should hold 95 %, {held} of {len(blind)} hold the "
        "published value.\n"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.projection_page", description=__doc__)
    parser.add_argument("--all", action="store_true", help="print every prediction; write nothing")
    if parser.parse_args().all:
        print(every_prediction(), end="")
        return
    root = checkout()
    if root is None:
        raise SystemExit("the page belongs to a checkout of fairlead")
    with atomic_write(root / PAGE, "w") as out:
        out.write(render((root / PAGE).read_text()))


if __name__ == "__main__":
    main()
