"""Steps of a few milliseconds that record as much as the trainer's do: ``python3 timeline_steps.py STEPS``.

Every other step records nothing in Python, while the core records all. Prints the median seconds of both kinds, the
slowest rank's, and the processor seconds of recording a step, as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np

from fairlead import comm
from fairlead.trace import spans

PARTS = ("input", "forward", "backward", "idle", "exposed communication", "update")
WARMUP = 20


def main(count: int) -> None:
    ranks = comm.init()
    timeline, recorder = ranks.timeline, spans.recorder
    gradients = [np.ones(250_000, np.float32), np.ones(1000, np.float32)]
    matrix = np.ones((256, 256), np.float32)
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * (WARMUP + count)):
        # Neighbours in time see the same machine, however busy it is.
        shown = number % 2 == 0
        ranks.timeline, spans.recorder = (timeline, recorder) if shown else (None, None)
        begun = time.perf_counter_ns()
        for name in ("make a batch", "read", "decode", "wait for the training"):
            with comm.span(name, rows=number):
                pass
        read = time.perf_counter_ns()
        for _ in range(4):
            matrix @ matrix
        computed = time.perf_counter_ns()
        ranks.aggregate(gradients, gradients)
        averaged = time.perf_counter_ns()
        if ranks.timeline is not None:
            borders = (begun, read, read, computed, computed, averaged, averaged)
            ranks.timeline.phases(number, PARTS, borders)
        took[shown].append((time.perf_counter_ns() - begun) / 1e9)
    ranks.timeline, spans.recorder = timeline, recorder
    work = [recording(ranks) for _ in range(20)]
    medians = [statistics.median(each[WARMUP:]) for each in took]
    every = ranks.gather(medians)
    if every:
        without, with_ = (max(each) for each in zip(*every, strict=True))
        work_s = statistics.median(work)
        print(json.dumps({"with": with_, "without": without, "work": work_s}), flush=True)
    comm.finalize()


def recording(ranks: comm.Comm, count: int = 50) -> float:
    """Processor seconds of what a step records, by itself."""
    begun = time.thread_time()
    for number in range(count):
        for name in ("make a batch", "read", "decode", "wait for the training"):
            with comm.span(name, rows=number):
                pass
        if ranks.timeline is not None:
            ranks.timeline.phases(number, PARTS, (0, 1, 2, 3, 4, 5, 6))
    return (time.thread_time() - begun) / count


if __name__ == "__main__":
    main(int(sys.argv[1]))
