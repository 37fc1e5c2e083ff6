"""Trials that a search loses, or runs twice, when its tuner and its trials are killed again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.result import FAIRLEAD, Benchmark, Result, absolute

KILLS, SEED = 50, 5
_TRIALS, _MORE, _LIMIT_S = 60, 20, 300.0
_SCRIPT = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--ledger")
parser.add_argument("--trial")
given = parser.parse_args()
def note(what):
    with open(given.ledger, "a") as stream:
        stream.write(f"{what} {given.trial} {given.x!r}\\n")
note("begun")
time.sleep(0.6)
print("FoM:", given.x)
note("ended")
"""


@dataclass(frozen=True)
class Killed:
    """What came of a search.

    Attributes:
        all: trials of the search.
        lost: trials that are missing, or have no state but that of having failed by other than a kill.
        twice: trials that have come to their end more than once, or are complete and never did.
        failed: trials that were killed themselves.
        taken_over: trials that another tuner brought to their end.
    """

    all: int
    tuners: int
    trials: int
    lost: tuple[int, ...]
    twice: tuple[int, ...]
    failed: int
    taken_over: int


def killed(folder: Path, seed: int = SEED, kills: int = KILLS) -> Killed:
    """A search whose tuner and trials are killed at random, with more trials until that was often enough; it then comes
    to its end."""
    ledger, draw = folder / "ledger", random.Random(seed)
    (folder / "trial.py").write_text(_SCRIPT)
    (folder / "space.toml").write_text("[parameters.x]\nlow = 0.0\nhigh = 1.0\n")
    tuners = hits = 0
    count = _TRIALS
    while tuners + hits < kills:
        words = _words(folder, seed, count)
        with (folder / "log").open("ab") as log:
            tuner = subprocess.Popen(words, stdout=log, stderr=log)
            until = time.monotonic() + draw.uniform(1, 9)
            while time.monotonic() < until and tuner.poll() is None:
                time.sleep(draw.uniform(0.5, 2))
                if draw.random() < 0.4 and (trials := _ranks(str(ledger))):
                    os.kill(draw.choice(trials), signal.SIGKILL)
                    hits += 1
            if tuner.poll() is None:
                tuner.kill()
                tuners += 1
            tuner.wait()
        if tuner.returncode == 0:
            count += _MORE
    words = _words(folder, seed, count)
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=_LIMIT_S, check=True)
    trials = json.loads(done.stdout)["result"]["trials"]
    ended = Counter(
        line.split()[1] for line in ledger.read_text().splitlines() if line.startswith("ended")
    )
    by_kill = {
        t["number"] for t in trials if "SIGKILL" in t["why"] or "its tuner" in t["why"]
        or "launched it was killed" in t["why"]
    }  # fmt: skip
    whole = {t["number"] for t in trials if t["state"] == "complete"}
    return Killed(
        all=count,
        tuners=tuners,
        trials=hits,
        lost=tuple(sorted({*range(count)} - whole - by_kill)),
        twice=tuple(n for n in range(count) if ended[str(n)] > 1 or (n in whole and ended[str(n)] != 1)),
        failed=len(by_kill - whole),
        taken_over=sum(t["attempt"] > 1 for t in trials if t["number"] in whole),
    )  # fmt: skip


def _words(folder: Path, seed: int, trials: int) -> list[str]:
    return [
        *FAIRLEAD, "tune", str(folder / "trial.py"), "--space", str(folder / "space.toml"), "--image", "mpi-base",
        "--trials", str(trials), "--seed", str(seed), "-o", str(folder / "out"), "--json", "--",
        "--ledger", str(folder / "ledger"), "--trial", "{trial}",
    ]  # fmt: skip


def _ranks(ledger: str) -> list[int]:
    """Processes of trials that note in this ledger."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"python3") and ledger.encode() in words and b"tune" not in words:
                found.append(int(entry.name))
    return found


def measure() -> Result:
    """Counts after 50 random kills."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        found = killed(Path(name))
    counts = {
        "trials that are lost": (len(found.lost), 0.0), "trials that ran twice": (len(found.twice), 0.0),
        "kills of the tuner": (found.tuners, None), "kills of a trial": (found.trials, None),
        "trials that a kill has failed": (found.failed, None),
        "trials that a later tuner brought to their end": (found.taken_over, None),
    }  # fmt: skip
    rows = tuple(absolute(name, [float(n)], bar, unit="") for name, (n, bar) in counts.items())
    what = f"a search of {found.all} trials, {KILLS} random kills, seed {SEED}"
    return Result("tune-kills", what, "nothing", rows)


BENCHMARKS = (Benchmark("tune-kills", 151, measure),)
