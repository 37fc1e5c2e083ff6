"""Spark against a session: ``bridge_spark.py standalone|connect SESSION``; what every case found, as JSON."""

import json
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from standalone import builder, standalone

from fairlead.base.progress import Progress
from fairlead.bridge import BridgeError, connect
from fairlead.bridge.alchemist import AlchemistSession
from fairlead.bridge.mllib import PCA, KMeans, RowMatrix

ROWS, COLS = 3000, 40
mode, session = sys.argv[1:]
found = {}


def table():
    rng = np.random.default_rng(5)
    return (rng.normal(size=(ROWS, COLS)) * 0.7 ** np.arange(COLS)) @ rng.normal(
        size=(COLS, COLS)
    ) + 3


def made(partitions=2, marker=""):
    """The table in Spark, made by its executors; the first to come to the middle of partition 1 fails if there is a marker."""
    rows, cols = ROWS, COLS

    def rows_of(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        rng = np.random.default_rng(5)
        whole = (rng.normal(size=(rows, cols)) * 0.7 ** np.arange(cols)) @ rng.normal(
            size=(cols, cols)
        ) + 3
        for number, batch in enumerate(batches):
            if marker and number == 2 and TaskContext.get().partitionId() == 1:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    raise RuntimeError("this attempt fails")
            ids = batch.column(0)
            values = pa.array(list(whole[ids.to_numpy()]), pa.list_(pa.float64()))
            yield pa.RecordBatch.from_arrays([ids, values], ["id", "row"])

    return spark.range(0, rows, 1, partitions).mapInArrow(rows_of, "id bigint, row array<double>")


# Not as a block: all that follows belongs to it.
cluster = standalone() if mode == "standalone" else nullcontext()
master = cluster.__enter__()
spark = (builder().master(master) if master else builder().remote("local[2,4]")).getOrCreate()
expected = table()


class Shown(Progress):
    """What a terminal would show."""

    def __init__(self):
        self.texts = []

    def stage(self, title, total=None, unit=""):
        return nullcontext(self)

    def note(self, text):
        self.texts.append(text)

    def advance(self, amount): ...


def slowly(batches):
    """The batches, and nothing after the second one for a while."""
    import time

    for number, batch in enumerate(batches):
        if number == 2:
            time.sleep(3)
        yield batch


shown = Shown()
with connect(session, progress=shown) as mpi:
    mpi.send(made().mapInArrow(slowly, "id bigint, row array<double>"), columns=["row"])
    found["progress"] = shown.texts

with connect(session) as mpi:
    matrix = mpi.send(made(), columns=["row"], index="id")
    found["send"] = bool((matrix.to_numpy() == expected).all())
    found["index"] = matrix.to_arrow().column("index").to_pylist() == list(range(ROWS))
    found["rows"] = [matrix.transfer.rows, list(matrix.counts)]
    matrix.free()
    with tempfile.TemporaryDirectory() as folder:
        marker = f"{folder}/failed"
        matrix = mpi.send(made(marker=marker), columns=["row"])
        found["retried"] = [Path(marker).exists(), bool((matrix.to_numpy() == expected).all())]
    u, s, v = mpi.linalg.svd(matrix, k=4)
    found["svd"] = float(abs(s.to_numpy() - np.linalg.svd(expected, compute_uv=False)[:4]).max())
    back = matrix.to_spark(spark)
    rows = np.array([row["row"] for row in back.collect()])
    found["to_spark"] = [sorted(back.columns), bool((rows == expected).all())]
    wide = mpi.send(spark.range(100).selectExpr("id", "cast(id as float) x", "id * 2 y"))
    found["columns"] = [
        str(wide.dtype),
        wide.to_pandas()["y"].tolist() == [2 * n for n in range(100)],
    ]
    found["many"] = bool((mpi.send(made(7), columns=["row"]).to_numpy() == expected).all())
    found["one"] = bool((mpi.send(made(1), columns=["row"]).to_numpy() == expected).all())
    # Of nine partitions only two have rows.
    few = made(9).where("id < 300 or id >= 2900")
    found["few"] = bool(
        (mpi.send(few, columns=["row"]).to_numpy() == np.r_[expected[:300], expected[2900:]]).all()
    )
    dealt = mpi.send(made(), columns=["row"], index="id", partitions=5)
    order = dealt.to_arrow().column("index").to_numpy()
    found["dealt"] = bool((dealt.to_numpy() == expected[order]).all()) and len(set(order)) == ROWS
    none = spark.createDataFrame([], "x double, y double")
    found["none"] = list(mpi.send(none).shape)
    found["empty"] = list(mpi.send(made().where("id < 0").selectExpr("id", "id * 2 y")).shape)
    for name, frame, options in (
        ("nan", spark.createDataFrame([(1.0,), (float("nan"),)], "x double").coalesce(1), {}),
        ("nan_label", spark.createDataFrame([("a", 1.0), ("b", float("nan"))], "k string, x double"), {"index": "k"}),
        ("nan_far", spark.range(0, 3000, 1, 2).selectExpr("if(id = 2345, double('nan'), id) x"), {}),
        ("null", spark.createDataFrame([(7, 1.0), (8, None)], "k int, x double"), {"index": "k"}),
        ("null_label", spark.createDataFrame([(None, None)], "k int, x double").coalesce(1), {"index": "k"}),
        ("text", spark.createDataFrame([("a",)], "x string"), {}),
        ("ragged", spark.createDataFrame([([1.0, 2.0],), ([1.0],)], "x array<double>").coalesce(1),
         {"columns": ["x"]}),
    ):  # fmt: skip
        try:
            mpi.send(frame, **options)
        except BridgeError as exc:
            found[name] = exc.findings[0].what
    from pyspark.ml.linalg import Vectors

    vectors = spark.createDataFrame(
        [(Vectors.dense(1, 2, 3),), (Vectors.sparse(3, [1], [5.0]),)], ["v"]
    )
    found["vectors"] = mpi.send(vectors).to_numpy().tolist()
    wide = [
        Vectors.sparse(100_000, [3, 99_999], [1.0, 2.0]),
        Vectors.dense(np.arange(100_000.0)),
        Vectors.sparse(100_000, [], []),
    ]
    sent = mpi.send(spark.createDataFrame([(vector,) for vector in wide], ["v"]).coalesce(1))
    exact = bool((sent.to_numpy() == np.array([vector.toArray() for vector in wide])).all())
    found["sparse"] = [sent.sparse, list(sent.shape), exact]

os.environ["FAIRLEAD_BRIDGE"] = session
frame = made().selectExpr("row as features")
model = PCA(k=3, inputCol="features", outputCol="p").fit(frame)
centred = expected - expected.mean(axis=0)
right = np.linalg.svd(centred, full_matrices=False)[2][:3].T
found["pca"] = float(abs(abs((right * model.pc).sum(axis=0)) - 1).max())
first = np.array(model.transform(frame).first()["p"])
found["transform"] = float(abs(first - expected[0] @ model.pc).max())
clusters = KMeans(k=3, seed=1, maxIter=5).fit(frame)
labels = [row["prediction"] for row in clusters.transform(frame).select("prediction").collect()]
nearest = (
    ((expected[:, None] - np.array(clusters.clusterCenters())) ** 2).sum(axis=2).argmin(axis=1)
)
found["kmeans"] = labels == nearest.tolist()
rows = RowMatrix(frame)
made_svd = rows.computeSVD(3, computeU=True)
found["rowmatrix"] = [rows.numRows(), rows.numCols(), made_svd.U.count(), list(made_svd.V.shape)]
rows.free()

als = AlchemistSession()
als.connect_to_alchemist("0.0.0.0", 24960)
workers = als.request_workers(2)
library = als.load_library("TestLib", "/usr/local/TestLib/target/testlib.so")
handle = als.send_matrix(expected)
S, U, V = library.truncated_svd(handle, 5)
found["alchemist"] = [
    len(workers),
    handle.num_rows,
    list(als.fetch_matrix(S).shape),
    list(als.fetch_matrix(V).shape),
]
als.stop()
spark.stop()
cluster.__exit__(None, None, None)
print("found", json.dumps(found), flush=True)
