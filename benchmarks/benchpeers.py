"""``fairlead bench peers`` at HEP-CNN's size on 2 ranks, kept beside the other results.

``python -m benchmarks.benchpeers FOLDER`` keeps what a run of it has left in a folder.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, Result, compare, keep, machine

NAME = "bench-peers"


def measure() -> Result:
    """Runs it; a row a peer. The picture is the product's own."""
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        words = ("bench", "peers", "hepcnn", "-n", "2", "-o", folder)
        subprocess.run([sys.executable, "-m", "fairlead", *words], check=True)
        return of_folder(Path(folder))


def of_folder(folder: Path) -> Result:
    """What was left in a folder; its picture is copied."""
    shutil.copy(folder / f"{NAME}.svg", RESULTS / f"{NAME}.svg")
    return of_document(json.loads((folder / f"{NAME}.json").read_text()))


def of_document(document: Mapping[str, Any]) -> Result:
    """Steps by each peer over those without communication, a launch each."""
    rows, told, loads = [], {}, []
    for peer in document["peers"]:
        launches = [one for one in peer["launches"] if one]
        own = [statistics.median(max(block["own"]) for block in one["blocks"]) for one in launches]
        shares = [
            statistics.median(max(block["base"]) / max(block["own"]) for block in one["blocks"])
            for one in launches
        ]
        # So that a launch counts as the command counts it, by the ratios of its turns: another step without
        # communication is beside each.
        base = [step * share for step, share in zip(own, shares, strict=True)]
        loads += [one["load"] for one in launches]
        if not launches:
            continue
        if peer["efficiency"] is None:
            told[f"{peer['title']}, samples/s"] = f"{peer['samples_per_s']['value']:.3g}"
        else:
            rows.append(compare(peer["title"], own, base, None, kind="pairs"))
            told[f"answers, {peer['title']}"] = peer["outcome"]
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
            "load, median": f"{statistics.median(loads):.1f}",
            **told,
        },
    )


if __name__ == "__main__":
    left = Path(sys.argv[1])
    on = {**machine(), "load_before": json.loads((left / f"{NAME}.json").read_text())["machine"]["load_before"]}  # fmt: skip
    print(keep(of_folder(left), on))
