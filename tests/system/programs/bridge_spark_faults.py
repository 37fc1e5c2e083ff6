"""Spark's own faults against a session: ``bridge_spark_faults.py CASE SESSION [FILE]``; what the case found, as JSON.

A case is ``speculation``, ``executor`` (one is killed while it sends), or ``vanish`` (this process kills itself, once FILE
is there; a task that sends makes it).
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from standalone import builder, standalone

from fairlead.bridge import connect

ROWS, COLS, PARTS = 6000, 100, 4
case, session, *rest = sys.argv[1:]


def expected() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((ROWS, COLS))


def rows_of(meet):
    """The table, made by the executors; ``meet`` is called in the middle of each partition, with its number."""
    rows, cols = ROWS, COLS

    def make(batches):
        import numpy as np
        import pyarrow as pa
        from pyspark import TaskContext

        whole = np.random.default_rng(7).standard_normal((rows, cols))
        for number, batch in enumerate(batches):
            if number == 2:
                meet(TaskContext.get().partitionId())
            ids = batch.column(0)
            values = pa.array(list(whole[ids.to_numpy()]), pa.list_(pa.float64()))
            yield pa.RecordBatch.from_arrays([ids, values], ["id", "row"])

    return make


def speculated(folder: str):
    """The first attempt at the last partition waits for the second one to end: Spark must start that."""

    def meet(partition: int) -> None:
        if partition != 3:
            return
        try:
            os.close(os.open(f"{folder}/first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            Path(folder, "second").touch()
            return
        deadline = time.monotonic() + 120
        while not Path(folder, "sealed").exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    return meet


def executor_killed(folder: str):
    """The executor of the first attempt at partition 1 is killed."""

    def meet(partition: int) -> None:
        if partition != 1:
            return
        try:
            os.close(os.open(f"{folder}/first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            Path(folder, "second").touch()
            return
        pid = os.getpid()
        while "java" not in Path(f"/proc/{pid}/comm").read_text():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
        time.sleep(60)

    return meet


def sending(file: str):
    def meet(partition: int) -> None:
        Path(file).touch()
        time.sleep(60)

    return meet


def main() -> None:
    more = {"spark.speculation": "true", "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5", "spark.speculation.multiplier": "1.5"}  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        standalone() as master,
        connect(session, name=case) as mpi,
    ):
        spark = builder(**(more if case == "speculation" else {})).master(master).getOrCreate()
        if case == "vanish":
            threading.Thread(target=die_once, args=(Path(rest[0]),), daemon=True).start()
            meet = sending(rest[0])
        else:
            meet = (speculated if case == "speculation" else executor_killed)(folder)
        frame = spark.range(0, ROWS, 1, PARTS).mapInArrow(
            rows_of(meet), "id bigint, row array<double>"
        )
        matrix = mpi.send(frame, columns=["row"], index="id")
        Path(folder, "sealed").touch()
        back = matrix.to_arrow()
        stats = mpi.status()["ranks"]
        found = {
            "attempts": [Path(folder, name).exists() for name in ("first", "second")],
            "exact": matrix.to_numpy().tobytes() == expected().tobytes(),
            "once": back.column("index").to_pylist() == list(range(ROWS)),
            "rows": [matrix.transfer.rows, sum(matrix.counts)],
            "used": sum(rank["used"] for rank in stats),
        }
        spark.stop()
    print("found", json.dumps(found), flush=True)


def die_once(file: Path) -> None:
    while not file.exists():
        time.sleep(0.05)
    time.sleep(0.5)  # rows are on their way
    os.kill(os.getpid(), signal.SIGKILL)


main()
