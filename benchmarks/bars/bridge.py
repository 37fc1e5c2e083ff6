"""Spark's tables computed by MPI ranks: MLlib, Dask and scikit-learn against ``fairlead bridge``, sending included.

Spark has two cores in the image ``analytics``, the ranks of a session have the same two in ``bridge``; they take turns. A
bar "at least 15 times as fast" is kept as a ratio of times of at most 1/15.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import bridge_projection
from benchmarks.result import FAIRLEAD, Benchmark, Compared, Result, absolute, alternate, compare
from benchmarks.sides import Job, Side, image, scratch
from benchmarks.tables import bar, finished, plain, value, verdict
from fairlead.base.paths import cache_dir
from fairlead.bridge import connect
from fairlead.bridge.client.session import Session
from fairlead.perf.draw.charts import (
    Axis,
    BarRow,
    Figure,
    Series,
    bars,
    chart,
    decades,
    linear,
)
from fairlead.perf.draw.svg_file import picture

NAME = "bridge"
COLUMNS, K = 1000, 20
_SKLEARN = "scikit-learn==1.9.0"
_LIMIT_S = 1200.0


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rows: of the table that the bars are for.
        sizes: of other tables, with the rounds of each. The small ones show where the bridge loses: sending has a cost
            that no table is too small for.
        svd, flat, pca, passes, alone: rounds.
    """

    rows: int = 80_000
    sizes: Mapping[int, int] = field(
        default_factory=lambda: {100: 5, 1000: 5, 12_500: 1, 25_000: 1, 50_000: 1, 100_000: 1, 200_000: 1}
    )  # fmt: skip
    svd: int = 3
    flat: int = 2
    pca: int = 2
    passes: int = 9
    alone: int = 9


def measure(effort: Effort | None = None) -> Result:
    """SVD by number of rows, PCA with its input, and what serving adds."""
    effort = effort or Effort()
    with scratch() as folder, _session(folder) as session:
        with _spark(folder, session) as spark:
            notes = _columns(spark)
            rows, phases = _against_mllib(spark, effort)
            notes |= phases
        with connect(session) as mpi:
            rows += _alone(folder, mpi, effort)
    return Result(
        NAME,
        "a DataFrame of float64 in Spark, 1,000 columns, sent to 2 ranks, computed there, and what is small fetched",
        "MLlib on 2 cores, of the same cached table; other peers where a row names them",
        tuple(rows),
        notes,
    )


def measure_transfer(effort: Effort | None = None) -> Result:
    """What sending takes, and a rank's memory meanwhile."""
    effort = effort or Effort()
    with scratch() as folder, _session(folder) as session:
        with connect(session) as mpi:
            memory = _memory(mpi, effort)
        with _spark(folder, session) as spark:
            rows = _transfer(spark, effort)
    return Result(
        "bridge-transfer",
        "a cached DataFrame of float64 in Spark, 1,000 columns, sent to 2 ranks",
        "one pass of mapInArrow over the same table that counts its rows",
        (*rows, memory),
    )


@contextmanager
def _session(folder: Path) -> Iterator[Path]:
    """Two ranks that wait for clients; the folder of their session."""
    env = {**os.environ, "XDG_STATE_HOME": str(folder)}
    words = ("serve", "-n", "2", "--background", "--name", "bench", "--bind", str(folder))
    subprocess.run([*FAIRLEAD, "bridge", *words, image("bridge")], env=env, check=True)
    try:
        yield folder / "fairlead/bridge/bench"
    finally:
        subprocess.run([*FAIRLEAD, "bridge", "stop", "bench"], env=env, check=False)


@contextmanager
def _spark(folder: Path, session: Path) -> Iterator[Side]:
    run = ("--mpi", "container", "--bind", str(session))
    words = ("bridge_spark.py", str(session), str(folder))
    with Side("spark", Job(image("analytics"), words, 1, run=run, stops=False), folder) as side:
        yield side.ready(_LIMIT_S)


def _in_turns(
    rounds: int, side: Side, theirs: str, ours: str, **words: Any
) -> dict[str, list[Any]]:
    return alternate(
        rounds,
        {
            "theirs": lambda: side.ask(theirs, **words)[0],
            "ours": lambda: side.ask(ours, **words)[0],
        },
    )


def _against_mllib(spark: Side, effort: Effort) -> tuple[list[Compared], dict[str, str]]:
    """Rows of the SVD and the PCA."""
    rows, notes = [], {}
    for count, rounds in {effort.rows: effort.svd, **effort.sizes}.items():
        spark.ask("table", rows=count)
        found = _in_turns(rounds, spark, "mllib_svd", "bridge_svd")
        differ = spark.ask("differ")[0]
        if differ > 1e-6:
            raise RuntimeError(f"the singular values of {count} rows differ by {differ:g}")
        seconds = [each for each, _ in found["ours"]]
        rows.append(compare(f"SVD of {count:,} rows over MLlib's", seconds, found["theirs"], None))
        for phase in ("send", "compute"):
            took = median(phases[phase] for _, phases in found["ours"])
            notes[f"{count} rows: {phase}, s"] = f"{took:.3g}"
    rows += _flat(spark, effort, notes)
    spark.ask("files", rows=effort.rows)
    for kind in ("parquet", "hdf5"):
        found = _in_turns(effort.pca, spark, "spark_pca", "bridge_pca", kind=kind)
        differ = spark.ask("differ")[0]
        if differ > 1e-4:
            raise RuntimeError(f"the variances of the table in {kind} differ by {differ:g}")
        name = {"parquet": "Parquet", "hdf5": "HDF5"}[kind]
        rows.append(compare(f"PCA of {effort.rows:,} rows read from {name} over Spark's", found["ours"], found["theirs"], 1 / 10))  # fmt: skip
    return rows, notes


def _flat(spark: Side, effort: Effort, notes: dict[str, str]) -> list[Compared]:
    """Rows of the SVD of normal numbers, whose singular values are nearly equal; how far they are off goes into notes."""
    spark.ask("table", rows=effort.rows, flat=True)

    def ours(method: str) -> tuple[float, float]:
        seconds = spark.ask("bridge_svd", method=method)[0][0]
        return seconds, spark.ask("differ")[0]

    sides = {
        "theirs": lambda: spark.ask("mllib_svd")[0],
        "randomized": lambda: ours("randomized"),
        "lanczos": lambda: ours("lanczos"),
    }
    spark.ask("mllib_svd")  # `differ` compares with it
    found = alternate(effort.flat, sides)
    made = []
    for method, limit in (("randomized", 1 / 15), ("lanczos", None)):
        label = f"SVD of {effort.rows:,} normal rows, {method}, over MLlib's"
        seconds = [each for each, _ in found[method]]
        made.append(compare(label, seconds, found["theirs"], limit))
        notes[f"{label}: values differ"] = f"{max(differ for _, differ in found[method]):.1g}"
    return made


def _transfer(spark: Side, effort: Effort) -> list[Compared]:
    spark.ask("table", rows=effort.rows)
    found = _in_turns(effort.passes, spark, "bare_pass", "send")
    label = f"sending {effort.rows:,} rows over a bare pass of mapInArrow"
    return [compare(label, found["ours"], found["theirs"], 1.3)]


def _columns(spark: Side) -> dict[str, str]:
    """A PCA of 100,000 columns by both sides; MLlib's may end with an error, whose words are kept."""
    mllib, ours = spark.ask("many_columns", columns=100_000)[0]
    return {
        f"PCA of 100,000 columns, {kind}: {side}": text
        for side, found in (("MLlib", mllib), ("bridge", ours))
        for kind, text in found.items()
    }


def _alone(folder: Path, mpi: Session, effort: Effort) -> list[Compared]:
    """Computing in the session against MPI programs, and the whole way against other libraries."""
    import numpy as np

    file = folder / "table.npy"
    scale = np.maximum(0.8 ** np.arange(COLUMNS), 1e-6)
    array = np.random.default_rng(1).standard_normal((effort.rows, COLUMNS)) * scale
    np.save(file, array)
    matrix = mpi.send(array)
    bind = ("--bind", str(folder))
    rows = []
    for name, label, limit in (
        ("program", "computing an SVD in a session over the same function in an MPI program", 1.1),
        ("plain", "… over a plain NumPy and mpi4py program", None),
    ):
        job = Job(image("bridge"), ("bridge_alone.py", name, str(file)), run=bind)
        with Side(name, job, folder) as side:
            side.ready()
            found = alternate(
                effort.alone, {"ours": lambda: _svd(mpi, matrix), "theirs": lambda: _slowest(side)}
            )
        rows.append(compare(label, found["ours"], found["theirs"], limit))
    matrix.free()
    for name, title in (
        ("dask", "Dask's svd_compressed"),
        ("sklearn", "scikit-learn's TruncatedSVD"),
    ):
        run = (*bind, "--mpi", "container", *_sklearn())
        job = Job(image("analytics"), ("bridge_alone.py", name, str(file)), 1, run=run, stops=False)
        with Side(name, job, folder) as side:
            side.ready()
            found = alternate(
                5, {"ours": lambda: _whole(mpi, array), "theirs": lambda: _slowest(side)}
            )
        rows.append(compare(f"an array of NumPy sent and computed over {title}", found["ours"], found["theirs"], None))  # fmt: skip
    return rows


def _slowest(side: Side) -> float:
    with side.turn():
        return float(max(seconds for seconds, _ in side.ask("svd")))


def _svd(mpi: Session, matrix: Any) -> float:
    found = mpi.linalg.svd(matrix, k=K)
    for each in found:
        each.free()
    return float(found.timing["wall"])


def _whole(mpi: Session, array: Any) -> float:
    begun = time.perf_counter()
    matrix = mpi.send(array)
    found = mpi.linalg.svd(matrix, k=K)
    found.s.to_numpy(), found.v.to_numpy()
    seconds = time.perf_counter() - begun
    for each in (matrix, *found):
        each.free()
    return seconds


def _sklearn() -> tuple[str, ...]:
    """Options that show scikit-learn to the image, which has NumPy and SciPy."""
    folder = cache_dir() / "tests" / _SKLEARN
    if not folder.is_dir():
        words = (
            "-q",
            "--no-deps",
            "--target",
            str(folder),
            _SKLEARN,
            "joblib",
            "threadpoolctl",
            "narwhals",
        )
        subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True)
    return ("--bind", str(folder), "--env", f"BENCH_PACKAGES={folder}")


def _memory(mpi: Session, effort: Effort) -> Compared:
    """What a rank's peak grew by while it received, over its share; in a session that has done nothing else."""
    import numpy as np

    def peaks() -> list[int]:
        return [rank["resident_peak"] for rank in mpi.status()["ranks"]]

    before = peaks()
    matrix = mpi.send(np.ones((effort.rows, COLUMNS)))
    share = [count * COLUMNS * 8 for count in matrix.counts]
    grown = [
        (after - first) / size for after, first, size in zip(peaks(), before, share, strict=True)
    ]
    matrix.free()
    return absolute(
        "a rank's peak memory while it receives, over its share of the matrix", grown, 1.5, unit=""
    )


def _svd_rows(result: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The rows of the SVD by number of rows of the matrix, ascending."""
    begin, end = "SVD of ", " rows over MLlib's"
    found = {
        int(row["name"].removeprefix(begin).removesuffix(end).replace(",", "")): row
        for row in result["rows"]
        if row["name"].startswith(begin) and row["name"].endswith(end)
    }
    return dict(sorted(found.items()))


def break_even(result: Mapping[str, Any]) -> float:
    """The number of rows at which both take as long: between two sizes, linear; 0 where the smallest gains."""
    before: tuple[int, float] | None = None
    for rows, row in _svd_rows(result).items():
        gain = median(row["baseline"]) - median(row["samples"])
        if gain >= 0:
            if before is None:
                return 0.0
            lost = -before[1]
            return float(before[0] + (rows - before[0]) * lost / (lost + gain))
        before = (rows, gain)
    return float("inf")


def _pays(rows: float) -> str:
    if not rows:
        return "At every size the bridge was faster, sending included."
    return f"Below about {rows:,.0f} rows of 1,000 columns MLlib is faster than sending."


def _table(result: Mapping[str, Any]) -> str:
    notes = result["versions"]
    lines = ["| rows | MLlib | bridge | of that sending | computing | times as fast |"]
    lines.append("| ---: | ---: | ---: | ---: | ---: | --- |")
    for count, row in _svd_rows(result).items():
        theirs, ours = (f"{median(row[key]):.3g} s" for key in ("baseline", "samples"))
        send, compute = (f"{notes[f'{count} rows: {phase}, s']} s" for phase in ("send", "compute"))
        fast = f"{1 / row['value']:.3g}"
        lines.append(f"| {count:,} | {theirs} | {ours} | {send} | {compute} | {fast} |")
    lines += ["", "| what | times | bar | |", "| --- | --- | --- | --- |"]
    known = {row["name"] for row in _svd_rows(result).values()}
    for row in result["rows"]:
        if row["name"] not in known:
            off = notes.get(f"{row['name']}: values differ")
            name = f"{row['name']}; values differ by {off}" if off else row["name"]
            lines.append(f"| {name} | {value(row)} | {bar(row)} | {verdict(row)} |")
    lines += ["", *bridge_projection.lines(result, max(_svd_rows(result)), COLUMNS)]
    wide = {key.partition(", ")[2]: text for key, text in notes.items() if "100,000" in key}
    return finished(
        lines,
        result,
        f"{_pays(break_even(result))} A PCA of 100,000"
        f" columns: 2,000 sparse rows, MLlib: “{wide['sparse: MLlib']}”, the bridge: {wide['sparse: bridge']}; 200 dense"
        f" rows, MLlib: {wide['dense: MLlib']}, the bridge: {wide['dense: bridge']}.",
        "The last table is a **projection** to the sizes of Alchemist's published runs"
        " ([its model](../../benchmarks/bridge_projection.py)): nobody has run it.",
    )


def _picture(result: Mapping[str, Any]) -> str:
    rows = _svd_rows(result)
    points = {
        name: tuple((float(count), median(row[key])) for count, row in rows.items())
        for name, key in (("bridge", "samples"), ("MLlib", "baseline"))
    }
    lines = [
        Series(name, own, style) for (name, own), style in zip(points.items(), "ab", strict=True)
    ]
    ticks = tuple((float(n), f"{n:,}") for n in (100, 1000, 12_500, 50_000, 200_000))
    axis = Axis("rows", min(rows) / 1.4, max(rows) * 1.4, ticks)
    title = "A truncated SVD, 1,000 columns, k 20"
    svg = chart(axis, decades([s for own in points.values() for _, s in own], " s"), lines, title)
    legend = tuple(zip("ab", points, strict=True))
    return picture(
        [Figure(title, "seconds from a DataFrame to values and vectors; 2 cores", svg, legend)]
    )


def _transfer_picture(result: Mapping[str, Any]) -> str:
    (row,) = (row for row in result["rows"] if row["name"].startswith("sending"))
    ways = (("the bridge", "samples", "a"), ("a pass of mapInArrow", "baseline", "other"))
    rows = [
        BarRow(name, median(row[key]), f"{median(row[key]):.2f} s", style)
        for name, key, style in ways
    ]
    axis = linear(0, 1.1 * max(row.value for row in rows), "s")
    title = "Sending a DataFrame"
    return picture([Figure(title, "medians; 2 cores", bars(rows, axis, title))])


BENCHMARKS = (
    Benchmark(NAME, 150, measure, _table, _picture),
    Benchmark("bridge-transfer", 149, measure_transfer, plain, _transfer_picture),
)
