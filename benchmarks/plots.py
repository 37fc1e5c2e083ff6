"""The pictures beside the JSON, by matplotlib: one a benchmark, SVG, the same bytes for the same figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, Compared

OURS, PEERS, MUTED, INK = "#0b6e99", "#b9bfc6", "#8a9199", "#22262a"


def steps(rows: Sequence[Compared], name: str, base: str = "no communication") -> Path:
    """Efficiency of every mode, a panel a model: the step of ``base`` over its own."""
    models = list(dict.fromkeys(row.name.split(": ")[0] for row in rows))
    titles = _titles(rows)[::-1]
    figure, panels = _figure(len(models), 10.5, 3.4)
    for panel, model in zip(panels, models, strict=True):
        for row in rows:
            of, title = row.name.split(": ")
            if of != model:
                continue
            at = titles.index(title)
            mine = "fairlead" in title
            value = 100 / row.value
            panel.barh(at, value, color=OURS if mine else PEERS, height=0.72)
            panel.plot([100 / row.high, 100 / row.low], [at, at], color=INK, linewidth=1)
            panel.text(2, at, f"{value:.0f} %", va="center", color="white" if mine else INK)
            if row.bar is not None:
                panel.plot(
                    [100 / row.bar] * 2, [at - 0.45, at + 0.45], color="#c0392b", linewidth=2
                )
        panel.set_yticks(range(len(titles)), titles)
        panel.set_title(model, loc="left", fontweight="bold")
        panel.set_xlim(0, 112)
        panel.set_xticks(range(0, 101, 25))
        panel.set_xlabel(f"efficiency against {base}, %")
    for panel in panels[1:]:
        panel.set_yticklabels([])
    return _kept(figure, name)


def _titles(rows: Sequence[Compared]) -> list[str]:
    """All titles, as the model that has most of them lists them; every panel has the same places."""
    own: dict[str, list[str]] = {}
    for row in rows:
        model, title = row.name.split(": ")
        own.setdefault(model, []).append(title)
    longest = max(own.values(), key=len)
    return [
        *longest,
        *dict.fromkeys(t for titles in own.values() for t in titles if t not in longest),
    ]


def sweep(rows: Mapping[str, Sequence[tuple[int, float]]], name: str) -> Path:
    """Seconds by size for each library, on logarithmic axes; and the same over the first's, beside it."""
    figure, (left, right) = _figure(2, 10.5, 4.0)
    first = dict(next(iter(rows.values())))
    styles = {}
    for at, (label, points) in enumerate(rows.items()):
        mine = at == 0
        style = {
            "color": OURS if mine else ("#d1495b", "#e09f3e", "#6a994e", "#7768ae", "#555")[at - 1],
            "linewidth": 2.4 if mine else 1.3,
            "marker": "o",
            "markersize": 3,
        }
        styles[label] = style
        sizes = [size for size, _ in points]
        left.plot(sizes, [1e3 * s for _, s in points], label=label, **style)
        right.plot(sizes, [s / first[size] for size, s in points], **style)
    for panel in (left, right):
        panel.set_xscale("log", base=2)
        ticks = [1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 27]
        panel.set_xticks(ticks, ["1 KiB", "64 KiB", "1 MiB", "16 MiB", "128 MiB"])
        panel.set_xlabel("size of the allreduce")
    most = max(s / first[size] for points in rows.values() for size, s in points)
    left.set_yscale("log")
    left.set_ylabel("ms")
    left.set_title("time", loc="left", fontweight="bold")
    right.set_yscale("log", base=2)
    ticks = [2.0**n for n in range(0 if most >= 64 else -1, 13, 2 if most >= 64 else 1)]
    right.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    least = min(s / first[size] for points in rows.values() for size, s in points)
    right.set_ylim(min(0.4, least / 1.5), 1.5 * most)
    right.set_title("times as long as fairlead", loc="left", fontweight="bold")
    # Where libraries differ most for the least sizes, and the corner is free.
    labels = left.get_legend_handles_labels()
    right.legend(*labels, frameon=False, loc="upper right", fontsize=8, handlelength=1.2)
    return _kept(figure, name)


def bars(
    groups: Mapping[str, Mapping[str, float]], name: str, label: str, line: Mapping[str, float]
) -> Path:
    """Bars in milliseconds, a panel a group; ``line`` is drawn across each: what cannot be beaten."""
    figure, panels = _figure(len(groups), 10.0, 3.0)
    for panel, (title, values) in zip(panels, groups.items(), strict=True):
        for at, (one, seconds) in enumerate(list(values.items())[::-1]):
            mine = "fairlead" in one
            panel.barh(at, 1e3 * seconds, color=OURS if mine else PEERS, height=0.72)
            panel.text(
                0, at, f" {1e3 * seconds:.0f} ms", va="center", color="white" if mine else INK
            )
        panel.axvline(1e3 * line[title], color="#c0392b", linewidth=1.5, linestyle="--")
        panel.set_yticks(range(len(values)), list(values)[::-1])
        panel.set_title(title, loc="left", fontweight="bold")
        panel.set_xlabel(label)
    for panel in panels[1:]:
        panel.set_yticklabels([])
    return _kept(figure, name)


def predicted(points: Sequence[tuple[float, float, bool]], name: str) -> Path:
    """Measured against predicted seconds; those that the model was not fitted to stand out."""
    figure, (panel,) = _figure(1, 4.8, 4.2)
    for seen, color, label in ((True, PEERS, "fitted"), (False, OURS, "held out")):
        own = [(m, p) for m, p, fitted in points if fitted is seen]
        panel.scatter(
            [1e3 * m for m, _ in own],
            [1e3 * p for _, p in own],
            color=color,
            label=label,
            s=18,
            zorder=3,
        )
    most = 1e3 * max(max(m, p) for m, p, _ in points) * 1.5
    least = 1e3 * min(min(m, p) for m, p, _ in points) / 1.5
    panel.plot([least, most], [least, most], color=MUTED, linewidth=1)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("measured, ms")
    panel.set_ylabel("model, ms")
    panel.legend(frameon=False)
    return _kept(figure, name)


def curves(groups: Mapping[str, Mapping[str, Sequence[float]]], name: str, label: str) -> Path:
    """One point a seed for every way to train, a panel a model, with the mean as a line."""
    figure, panels = _figure(len(groups), 8.5, 3.2)
    for panel, (title, values) in zip(panels, groups.items(), strict=True):
        for at, (_, scores) in enumerate(values.items()):
            panel.plot([at] * len(scores), scores, "o", color=OURS, alpha=0.6, markersize=5)
            mean = sum(scores) / len(scores)
            panel.plot([at - 0.25, at + 0.25], [mean, mean], color=INK, linewidth=2)
        panel.set_xticks(range(len(values)), list(values))
        panel.set_xlim(-0.6, len(values) - 0.4)
        panel.set_title(title, loc="left", fontweight="bold")
        panel.set_ylabel(label)
    return _kept(figure, name)


def _figure(panels: int, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # Fixed ids and no date: a picture changes only when its figures do.
    pyplot.rcParams.update(
        {
            "svg.hashsalt": "fairlead",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": MUTED,
            "axes.titlesize": 10,
            "figure.facecolor": "white",
        }
    )
    figure, axes = pyplot.subplots(1, panels, figsize=(width, height), squeeze=False)
    return figure, list(axes[0])


def _kept(figure: Any, name: str) -> Path:
    from matplotlib import pyplot

    path = RESULTS / f"{name}.svg"
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def kept(name: str) -> dict[str, Any]:
    """A result's JSON."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found
