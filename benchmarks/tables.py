"""``python -m benchmarks.tables``: writes the kept results' figures into docs/reference/measured.md, between its marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import plots
from benchmarks.measure import RESULTS

DOC = Path(__file__).parents[1] / "docs" / "reference" / "measured.md"
_MARKED = re.compile(r"(<!-- figures ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = Mapping[str, Any]


def written(text: str) -> str:
    """The document with the figures of what is kept now."""

    def fill(match: re.Match[str]) -> str:
        name = match[2]
        if not (RESULTS / f"{name}.json").is_file():
            return f"{match[1]}Nothing is kept yet: `python -m benchmarks {name}` measures it.\n{match[3]}"
        picture = f"![{name}](../../benchmarks/results/{name}.svg)\n\n"
        return match[1] + picture + TABLES[name](plots.kept(name)) + match[3]

    return _MARKED.sub(fill, text)


def steps(result: Mapping[str, Any]) -> str:
    """Efficiencies in percent: the inverse of a row's ratio of times."""
    titles = list(dict.fromkeys(row["name"].split(": ")[1] for row in result["rows"]))
    titles.sort(key=lambda title: not title.startswith("fairlead"))
    models = list(dict.fromkeys(row["name"].split(": ")[0] for row in result["rows"]))
    found = {tuple(row["name"].split(": ")): row for row in result["rows"]}
    lines = ["| | " + " | ".join(models) + " |", "| --- |" + " --- |" * len(models)]
    for title in titles:
        cells = [_efficiency(found[m, title]) if (m, title) in found else "" for m in models]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _measured(result), ""])


def plain(result: Mapping[str, Any]) -> str:
    """Every row as it is."""
    lines = ["| what | value | bar | |", "| --- | --- | --- | --- |"]
    for row in result["rows"]:
        lines.append(f"| {row['name']} | {_value(row)} | {_bar(row)} | {_verdict(row)} |")
    return "\n".join([*lines, "", _measured(result), ""])


def peers(result: Mapping[str, Any]) -> str:
    """How many times as long as fairlead each library takes: a row a size."""
    found: dict[int, dict[str, Row]] = {}
    for row in result["rows"]:
        size, library = row["name"].split(" B: fairlead over ")
        found.setdefault(int(size), {})[library] = row
    libraries = list(next(iter(found.values())))
    lines = ["| bytes | " + " | ".join(libraries) + " |", "| ---: |" + " ---: |" * len(libraries)]
    for size, row in found.items():
        cells = [f"{1 / row[name]['value']:.2g}" for name in libraries]
        lines.append(f"| {size:,} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _measured(result), ""])


def trained(result: Mapping[str, Any]) -> str:
    """A row a peer, the fastest first: samples/s, efficiency, whether its answers were right."""
    told = result["versions"]
    lines = ["| | samples/s | step efficiency | answers |", "| --- | ---: | --- | --- |"]
    for row in sorted(result["rows"], key=lambda row: median(row["samples"])):
        rate = float(told["samples a step"]) / median(row["samples"])
        share = _efficiency(row)
        lines.append(
            f"| {row['name']} | {rate:.3g} | {share} | {told['answers, ' + row['name']]} |"
        )
    alone = ", ".join(f"{k.removesuffix(', samples/s')} {v}" for k, v in told.items() if k.endswith("samples/s"))  # fmt: skip
    words = f"Samples/s of {alone}. {told['rounds']} rounds; load meanwhile, median: {told['load, median']}."
    return "\n".join([*lines, "", _measured(result), words, ""])


def scaling(result: Mapping[str, Any]) -> str:
    """What is right and the model's errors; each held-out run is in the JSON."""
    rows = [row for row in result["rows"] if not row["name"].startswith(("held out: ", "fitted: ")) or "step of" in row["name"]]  # fmt: skip
    rows = _worst_of_ranks(rows)
    fitted = ", ".join(f"{k[7:]} {v}" for k, v in result["versions"].items() if "fitted" in k)
    table = plain({**result, "rows": rows})
    return f"{table}\nFitted, in seconds, and as a multiple of the link's rate: {fitted}.\n"


def _worst_of_ranks(rows: Sequence[Row]) -> list[Row]:
    """Rows that differ in their number of ranks alone as one: the largest value of them."""
    worst: dict[str, Row] = {}
    for row in rows:
        name = re.sub(r"^\d+ ranks", "2 to 32 ranks, worst", row["name"])
        if name not in worst or row["value"] > worst[name]["value"]:
            worst[name] = {**row, "name": name}
    return list(worst.values())


def node(result: Mapping[str, Any]) -> str:
    """A row a size: fairlead's time, as many times each MPI's, and what memory allows."""
    found: dict[int, dict[str, Row]] = {}
    for row in result["rows"]:
        library, size, *against = re.match(
            r"(.*): (\d+) B(, against memory)?$", row["name"]
        ).groups()  # type: ignore[union-attr]
        found.setdefault(int(size), {})["memory" if against[0] else library] = row
    libraries = [name for name in next(iter(found.values())) if name != "memory"]
    lines = [
        f"| bytes | fairlead | {' | '.join(f'over {name}' for name in libraries)} | over what memory allows |"
    ]
    lines.append("| ---: | ---: |" + " ---: |" * (len(libraries) + 1))
    for size, rows in found.items():
        own = 1e6 * median(rows[libraries[0]]["samples"])
        took = f"{own:.3g} µs" if own < 1000 else f"{own / 1000:.3g} ms"
        cells = [
            f"{_value(rows[name])}, bar {_bar(rows[name])}: {_verdict(rows[name])}"
            for name in libraries
        ]
        bound = f"{rows['memory']['value']:.2g}" if "memory" in rows else ""
        lines.append(f"| {size:,} | {took} | {' | '.join(cells)} | {bound} |")
    return "\n".join([*lines, "", _measured(result), ""])


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "comm-node": node,
    "step-efficiency": steps,
    "bench-peers": trained,
    "comm-peers": peers,
    "comm-link": plain,
    "comm-scaling": scaling,
    "convergence": plain,
}


def _efficiency(row: Row) -> str:
    text = f"{100 / row['value']:.0f} % [{100 / row['high']:.0f}, {100 / row['low']:.0f}]"
    if row["bar"] is None:
        return text
    return f"**{text}**, bar {100 / row['bar']:.0f} %: {_verdict(row)}"


def _value(row: Row) -> str:
    return f"{row['value']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"


def _bar(row: Row) -> str:
    return "" if row["bar"] is None else f"{row['bar']:.3g}"


def _verdict(row: Row) -> str:
    return "" if row["bar"] is None else "met" if row["met"] else "missed"


def _measured(result: Mapping[str, Any]) -> str:
    on = result["machine"]
    return (
        f"Measured {result['measured'][:10]} on {on['cores']} cores, {on['processor']}; load before:"
        f" {on['load_before']:.1f}."
    )


if __name__ == "__main__":
    DOC.write_text(written(DOC.read_text()))
