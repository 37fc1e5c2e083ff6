"""``python -m benchmarks.peers`` at HEP-CNN's size on 2 ranks, kept with the other results.

``python -m benchmarks.bars.bench_peers FOLDER`` keeps what a run of it has left in a folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pictures import efficiencies
from benchmarks.result import PACKAGE, Benchmark, Result, compare, keep, machine
from benchmarks.tables import efficiency, finished
from fairlead.perf.draw.charts import WIDTH
from fairlead.perf.draw.svg_file import picture

NAME = "bench-peers"


def measure() -> Result:
    """Runs it; a row a peer."""
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        line = (sys.executable, "-m", "benchmarks.peers", "hepcnn", "-n", "2", "-o", folder)
        subprocess.run(line, cwd=PACKAGE.parent, check=True)
        return of_document(_document(Path(folder)))


def _document(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / f"{NAME}.json").read_text())
    return document


def of_document(document: Mapping[str, Any]) -> Result:
    """Steps by each peer over those without communication, one value a launch."""
    rows, notes, loads = [], {}, []
    for peer in document["peers"]:
        launches = [launch for launch in peer["launches"] if launch]
        if not launches:
            continue
        own = [median(max(block["own"]) for block in launch["blocks"]) for launch in launches]
        # A launch counts as the command counts it, by the ratios of its turns: each has a step without
        # communication next to it.
        base = [
            step * median(max(block["base"]) / max(block["own"]) for block in launch["blocks"])
            for step, launch in zip(own, launches, strict=True)
        ]
        loads += [launch["load"] for launch in launches]
        if peer["efficiency"] is None:
            notes[f"{peer['title']}, samples/s"] = f"{peer['samples_per_s']['value']:.3g}"
        else:
            rows.append(compare(peer["title"], own, base, None, kind="pairs"))
            notes[f"answers, {peer['title']}"] = peer["outcome"]
    return Result(
        NAME,
        f"a training step of {document['title']} on {document['ranks']} ranks: the slower rank's time",
        "the same step without communication, on all ranks at once, in turns within the same launch: a launch's"
        " step times the median ratio of its turns",
        tuple(rows),
        {
            "rounds": str(document["rounds"]),
            "turns a launch": str(document["blocks"]),
            "steps a turn": str(document["steps"]),
            "samples a step": str(document["ranks"] * document["batch"]),
            "load, median": f"{median(loads):.1f}",
            **notes,
        },
    )


def _rates(result: Mapping[str, Any]) -> dict[str, float]:
    """Samples/s by peer, the fastest first."""
    samples = float(result["versions"]["samples a step"])
    rates = {row["name"]: samples / median(row["samples"]) for row in result["rows"]}
    return dict(sorted(rates.items(), key=lambda item: -item[1]))


def _table(result: Mapping[str, Any]) -> str:
    """A row a peer, the fastest first: samples/s, efficiency, whether its answers were right."""
    notes, rows = result["versions"], {row["name"]: row for row in result["rows"]}
    lines = ["| | samples/s | step efficiency | answers |", "| --- | ---: | --- | --- |"]
    for name, rate in _rates(result).items():
        answers = notes[f"answers, {name}"]
        lines.append(f"| {name} | {rate:.3g} | {efficiency(rows[name])} | {answers} |")
    alone = ", ".join(f"{k.removesuffix(', samples/s')} {v}" for k, v in notes.items() if k.endswith("samples/s"))  # fmt: skip
    words = f"Samples/s of {alone}. {notes['rounds']} rounds; load meanwhile, median: {notes['load, median']}."
    return finished(lines, result, words)


def _picture(result: Mapping[str, Any]) -> str:
    rates = _rates(result)
    rows = sorted(result["rows"], key=lambda row: row["value"])
    notes = {name: f"{rate:.3g} samples/s" for name, rate in rates.items()}
    return picture([efficiencies(rows, "HEP-CNN: step efficiency on 2 ranks", notes, 2 * WIDTH)])


BENCHMARKS = (Benchmark(NAME, 100, measure, _table, _picture),)

if __name__ == "__main__":
    document = _document(Path(sys.argv[1]))
    on = {**machine(), "load_before": document["machine"]["load_before"]}
    print(keep(of_document(document), on))
