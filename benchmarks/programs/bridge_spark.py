"""Spark with two cores against the ranks of a session: ``bridge_spark.py SOCKET SESSION FOLDER``, in ``analytics``.

Both sides begin with the same cached DataFrame; MLlib's vectors are cached too, so that it need not convert.
"""

import os
import shutil
import sys
import time

import numpy as np
import turns
from pyspark.ml.feature import PCA
from pyspark.ml.functions import array_to_vector
from pyspark.mllib.linalg.distributed import RowMatrix
from pyspark.mllib.util import MLUtils
from pyspark.sql import SparkSession

from fairlead.bridge import connect

COLUMNS, K = 1000, 20


def _session(folder):
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "10g")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        "spark.driver.maxResultSize": "2g",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _rows(scale):
    """A function that makes rows of normal numbers, times a number for each column."""

    def made(batches):
        import pyarrow as pa

        for batch in batches:
            ids = batch.column(0).to_numpy()
            rows = np.random.default_rng(int(ids[0])).standard_normal((len(ids), COLUMNS)) * scale
            offsets = np.arange(len(ids) + 1, dtype=np.int32) * COLUMNS
            values = pa.ListArray.from_arrays(offsets, pa.array(rows.reshape(-1)))
            yield pa.RecordBatch.from_arrays([values], ["row"])

    return made


def _counted(batches):
    """Reads every batch, and nothing else."""
    import pyarrow as pa

    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], ["rows"])


def _of_hdf5(path):
    def read(batches):
        import h5py
        import pyarrow as pa

        with h5py.File(path, "r") as opened:
            for batch in batches:
                ids = batch.column(0).to_numpy()
                rows = opened["data"][ids[0] : ids[-1] + 1]
                offsets = np.arange(len(ids) + 1, dtype=np.int32) * rows.shape[1]
                values = pa.ListArray.from_arrays(offsets, pa.array(rows.reshape(-1)))
                yield pa.RecordBatch.from_arrays([values], ["row"])

    return read


class Sides:
    """What a table of Spark is computed by: MLlib, or the ranks."""

    def __init__(self, session, folder):
        self.spark, self.folder = _session(folder), folder
        self.mpi = connect(session)
        self.frame = self.vectors = None
        self.last = {}

    def table(self, rows, flat=False):
        """Caches a table of so many rows for both sides.

        Singular values fall by a fifth from one to the next: all methods then agree to 1e-6. If ``flat``, they are
        nearly equal: ARPACK takes many steps, and a randomised method is not exact.
        """
        for old in (self.frame, self.vectors):
            if old is not None:
                old.unpersist(blocking=True)
        scale = np.ones(COLUMNS) if flat else np.maximum(0.8 ** np.arange(COLUMNS), 1e-6)
        made = self.spark.range(0, rows, 1, 2).mapInArrow(_rows(scale), "row array<double>")
        self.frame = made.cache()
        ml = self.frame.select(array_to_vector("row").alias("v"))
        self.vectors = MLUtils.convertVectorColumnsFromML(ml, "v").cache()
        return [self.frame.count(), self.vectors.count()]

    def mllib_svd(self):
        begun = time.perf_counter()
        found = RowMatrix(self.vectors).computeSVD(K)
        seconds = time.perf_counter() - begun
        self.last["mllib"] = found.s.toArray()
        return seconds

    def bridge_svd(self, method="randomized"):
        """From the DataFrame to values and vectors in this process; seconds by phase too."""
        begun = time.perf_counter()
        matrix = self.mpi.send(self.frame)
        found = self.mpi.linalg.svd(matrix, k=K, method=method)
        values, _ = found.s.to_numpy(), found.v.to_numpy()
        seconds = time.perf_counter() - begun
        self.last["bridge"] = values
        phases = {"send": matrix.transfer.wall_s, "compute": found.timing["wall"]}
        for each in (matrix, *found):
            each.free()
        return [seconds, phases]

    def differ(self):
        """The largest relative difference of the values that both sides found last."""
        ours, theirs = self.last["bridge"], self.last["mllib"]
        return float(abs(ours / theirs - 1).max())

    def bare_pass(self):
        begun = time.perf_counter()
        self.frame.mapInArrow(_counted, "rows bigint").collect()
        return time.perf_counter() - begun

    def send(self):
        begun = time.perf_counter()
        matrix = self.mpi.send(self.frame)
        seconds = time.perf_counter() - begun
        matrix.free()
        return seconds

    def files(self, rows):
        """Writes the table for both sides: a folder of Parquet, and HDF5."""
        import h5py

        self.table(rows)
        shutil.rmtree(f"{self.folder}/table", ignore_errors=True)
        self.frame.write.parquet(f"{self.folder}/table")
        matrix = self.mpi.send(self.frame)
        with h5py.File(f"{self.folder}/table.h5", "w") as opened:
            opened["data"] = matrix.to_numpy()
        matrix.free()
        self.frame.unpersist(blocking=True)
        self.vectors.unpersist(blocking=True)

    def _principal(self, frame):
        vectors = frame.select(array_to_vector("row").alias("v"))
        return PCA(k=K, inputCol="v", outputCol="p").fit(vectors).explainedVariance.toArray()

    def spark_pca(self, kind):
        begun = time.perf_counter()
        if kind == "parquet":
            frame = self.spark.read.parquet(f"{self.folder}/table")
        else:
            import h5py

            with h5py.File(f"{self.folder}/table.h5", "r") as opened:
                rows = opened["data"].shape[0]
            read = _of_hdf5(f"{self.folder}/table.h5")
            frame = self.spark.range(0, rows, 1, 2).mapInArrow(read, "row array<double>")
        self.last["mllib"] = self._principal(frame)
        return time.perf_counter() - begun

    def bridge_pca(self, kind):
        path = f"{self.folder}/table" if kind == "parquet" else f"{self.folder}/table.h5:data"
        begun = time.perf_counter()
        matrix = self.mpi.send(path)
        found = self.mpi.linalg.pca(matrix, k=K)
        self.last["bridge"] = found.explained_variance_ratio.to_numpy()
        found.components.to_numpy()
        seconds = time.perf_counter() - begun
        for each in (matrix, *found):
            each.free()
        return seconds

    def many_columns(self, columns):
        """A PCA of so many columns: what MLlib says to sparse rows, its seconds for dense ones, and the ranks' for both."""
        import scipy.sparse
        from pyspark.ml.linalg import Vectors

        sparse = scipy.sparse.random(2000, columns, 1e-3, "csr", random_state=1)
        dense = np.random.default_rng(1).standard_normal((200, columns))
        rows = {
            "sparse": [
                Vectors.sparse(columns, r.indices.tolist(), r.data.tolist()) for r in sparse
            ],
            "dense": [Vectors.dense(r) for r in dense],
        }
        model, mllib, ours = PCA(k=3, inputCol="v", outputCol="p"), {}, {}
        for name, vectors in rows.items():
            frame = self.spark.createDataFrame([(v,) for v in vectors], ["v"]).cache()
            frame.count()
            begun = time.perf_counter()
            try:
                model.fit(frame)
                mllib[name] = f"{time.perf_counter() - begun:.3g} s"
            except Exception as exc:
                causes = [line for line in str(exc).splitlines() if "Exception: " in line]
                mllib[name] = (causes or str(exc).splitlines())[-1].rpartition("Exception: ")[2][
                    :120
                ]
            frame.unpersist(blocking=True)
        for name, data in (("sparse", sparse), ("dense", dense)):
            begun = time.perf_counter()
            matrix = self.mpi.send(data)
            found = self.mpi.linalg.pca(matrix, k=3)
            found.components.to_numpy()
            ours[name] = f"{time.perf_counter() - begun:.3g} s"
            for each in (matrix, *found):
                each.free()
        return [mllib, ours]


def main(path, session, folder):
    sides = Sides(session, folder)
    names = [
        name for name in dir(sides) if not name.startswith("_") and callable(getattr(sides, name))
    ]
    turns.serve(path, {name: getattr(sides, name) for name in names})
    sides.mpi.close()
    sides.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
