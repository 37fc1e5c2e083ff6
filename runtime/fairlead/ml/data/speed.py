"""``python3 -m fairlead.ml.data.speed --data DIR``: the samples per second that one rank can read.

A training whose ranks need more than this waits for its data. Files in the page cache are read at the speed of memory:
to measure the storage, use files that are larger than memory, or that were not read before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from fairlead.base.errors import FairleadError
from fairlead.base.paths import atomic_write
from fairlead.ml.data.manifest import read_manifest
from fairlead.ml.data.prefetch import prefetch
from fairlead.ml.data.samples import Samples
from fairlead.ml.data.shards import Rows
from fairlead.ml.train.events import EventLog


@dataclass(frozen=True)
class PipelineSpeed:
    """The result of :func:`measure`.

    Attributes:
        samples_per_s: median of the windows.
        input_bytes_per_s: the same, in bytes of inputs as they are in memory.
        windows: samples/s of each window, in order.
        window_s, warmup_s: how long each was to be; a batch that has begun is waited for.
        samples: how many were read in the windows.
    """

    samples_per_s: float
    input_bytes_per_s: float
    windows: tuple[float, ...]
    window_s: float
    warmup_s: float
    samples: int


def measure(
    batches: Iterable[Samples], windows: int = 5, window_s: float = 2.0, warmup_s: float = 1.0
) -> PipelineSpeed:
    """Reads batches as fast as possible.

    Args:
        batches: as many as the time takes; where they end before, what was measured until then counts.
        warmup_s: seconds before the first window, which count for nothing.
    Raises:
        ValueError: the batches ended before a window did.
    """
    rates: list[float] = []
    source, total, size = iter(batches), 0, 0
    for number in range(0 if warmup_s > 0 else 1, windows + 1):  # 0 is the warm-up
        limit, taken, begun = window_s if number else warmup_s, 0, time.perf_counter()
        for batch in source:
            taken += len(batch)
            size = batch.inputs.nbytes // max(len(batch), 1)
            if (seconds := time.perf_counter() - begun) >= limit:
                break
        else:
            break
        if number:
            rates.append(taken / seconds)
            total += taken
    if not rates:
        raise ValueError("the batches ended before a window did")
    median = statistics.median(rates)
    return PipelineSpeed(median, median * size, tuple(rates), window_s, warmup_s, total)


def main() -> None:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python3 -m fairlead.ml.data.speed", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the files")
    parser.add_argument("--split", choices=("train", "val"), default="train")
    parser.add_argument("--batch", type=int, default=16, help="samples of a batch")
    parser.add_argument("--ranks", type=int, default=1, help="read the share of one of this many")
    parser.add_argument(
        "--ahead", type=int, default=2, help="batches made ahead in a thread; 0: none"
    )
    parser.add_argument("--threads", type=int, default=1, help="that decode pictures")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--window-s", type=float, default=2.0)
    parser.add_argument("--warmup-s", type=float, default=1.0)
    parser.add_argument("--verify", action="store_true", help="read and check all files before")
    parser.add_argument("--skip-damaged", action="store_true", help="leave damaged files out")
    parser.add_argument(
        "--external-data", action="store_true", help="HDF5 files may have values in other files"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="write the object to this file")
    parser.add_argument("--events-file", type=Path, help="write errors as JSON lines, too")
    given = parser.parse_args()
    try:
        manifest = read_manifest(
            given.data,
            given.split,
            skip_damaged=given.skip_damaged,
            verify=given.verify,
            external=given.external_data,
        )
        rows = Rows(manifest, given.split, 0, given.ranks, threads=given.threads)
        batches: Iterable[Samples] = (step.batch for step in rows.steps(given.batch, seed=1))
        if given.ahead:
            batches = prefetch(batches, given.ahead)
        speed = measure(batches, given.windows, given.window_s, given.warmup_s)
    except FairleadError as exc:
        if given.events_file:
            EventLog(given.events_file).errors(exc)
        for f in exc.findings:
            details = (f"{label} {text}" for label, text in f.details)
            print(f"error[{f.check}]: {f.what}", *details, sep="\n")
        raise SystemExit(int(exc.code)) from None
    document = {
        "schema": "fairlead.data.speed",
        "version": 1,
        "data_set": manifest.layout.data_set,
        "input_shape": manifest.layout.input_shape,
        "input_dtype": manifest.layout.input_dtype,
        "files": len(manifest.shards),
        "skipped": [str(damage.path) for damage in manifest.damaged],
        "rows": manifest.total,
        "batch": given.batch,
        "ranks": given.ranks,
        "ahead": given.ahead,
        "threads": given.threads,
        **asdict(speed),
    }
    if given.out:
        with atomic_write(given.out, "w") as stream:
            json.dump(document, stream)
    if given.json:
        print(json.dumps(document))
        return
    files = len(manifest.shards)
    print(f"{manifest.layout}: {manifest.total} samples in {files} file{'' if files == 1 else 's'}")
    for damage in manifest.damaged:
        print(f"skipped {damage.path}: {damage.why}")
    print(
        f"{speed.samples_per_s:.0f} samples/s, {speed.input_bytes_per_s / 1e6:.0f} MB/s of inputs:"
        f" median of {len(speed.windows)} windows of {speed.window_s:g} s,"
        f" {min(speed.windows):.0f} to {max(speed.windows):.0f}"
    )


if __name__ == "__main__":
    main()
