"""``PCA``, ``KMeans`` and ``RowMatrix`` in the shape of Spark's MLlib, on the ranks of a session.

The import line changes; parameters, attributes and the columns of results are MLlib's::

    from fairlead.bridge.mllib import PCA
    model = PCA(k=3, inputCol="features", outputCol="pca").fit(frame)
    model.transform(frame)

Every ``fit`` sends the DataFrame to the only session of this user, or to ``session=``; what it holds on the ranks is freed
with its results. Source of the names: Spark 4, ``pyspark.ml.feature.PCA``, ``pyspark.ml.clustering.KMeans``,
``pyspark.mllib.linalg.distributed.RowMatrix``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from fairlead.bridge.client.session import Session, connect


@contextmanager
def _session(given: Session | None) -> Iterator[Session]:
    with nullcontext(given) if given else connect() as session:
        yield session


class PCA:
    """Principal components of a column of arrays or vectors.

    Args:
        k: how many.
        session: of the bridge.
    """

    def __init__(self, *, k: int, inputCol: str = "features", outputCol: str | None = None,
                 session: Session | None = None):  # fmt: skip
        self._k, self._input, self._session = k, inputCol, session
        self._output = outputCol or f"{inputCol}_pca"

    def fit(self, dataset: Any) -> PCAModel:
        """The components of a DataFrame, centred as MLlib centres."""
        with _session(self._session) as session:
            matrix = session.send(dataset, columns=[self._input])
            made = session.linalg.pca(matrix, k=self._k)
            components = np.asarray(made.components.to_numpy())
            ratio = np.asarray(made.explained_variance_ratio.to_numpy())
            for handle in (matrix, *made):
                handle.free()
        return PCAModel(components, ratio, self._input, self._output)


class PCAModel:
    """
    Attributes:
        pc: (columns, k) principal components.
        explainedVariance: share of the variance that each explains.
    """

    def __init__(self, pc: np.ndarray, explained: np.ndarray, input_col: str, output_col: str):
        self.pc, self.explainedVariance = pc, explained
        self._input, self._output = input_col, output_col

    def transform(self, dataset: Any) -> Any:
        """The DataFrame with a column of arrays: rows times components, which MLlib does not centre either."""
        return _with_array(dataset, self._input, self._output, self.pc)


# MLlib's names of the parameters, and the library's.
_KMEANS = {"maxIter": "iterations", "tol": "tol", "seed": "seed", "initSteps": "init_steps"}


class KMeans:
    """Clusters of a column of arrays or vectors, with the start of k-means||."""

    def __init__(self, *, k: int = 2, featuresCol: str = "features",
                 predictionCol: str = "prediction", session: Session | None = None, **settings: Any):  # fmt: skip
        """
        Args:
            settings: ``maxIter``, ``tol``, ``seed``, ``initSteps``, as in MLlib.
        Raises:
            TypeError: it has another one.
        """
        self._k, self._features, self._prediction = k, featuresCol, predictionCol
        self._session = session
        if unknown := settings.keys() - _KMEANS.keys():
            raise TypeError(f"KMeans has no parameter {', '.join(sorted(unknown))}")
        self._settings = {_KMEANS[name]: value for name, value in settings.items()}

    def fit(self, dataset: Any) -> KMeansModel:
        """Centres of a DataFrame."""
        with _session(self._session) as session:
            matrix = session.send(dataset, columns=[self._features])
            made = session.linalg.kmeans(matrix, k=self._k, **self._settings)
            centres = np.asarray(made.centers.to_numpy())
            cost = float(made.inertia)
            for handle in (matrix, *made):
                handle.free()
        return KMeansModel(centres, cost, self._features, self._prediction)


class KMeansModel:
    """
    Attributes:
        trainingCost: sum of squared distances to the nearest centre.
    """

    def __init__(self, centres: np.ndarray, cost: float, features: str, prediction: str):
        self._centres, self.trainingCost = centres, cost
        self._features, self._prediction = features, prediction

    def clusterCenters(self) -> list[np.ndarray]:
        return list(self._centres)

    def transform(self, dataset: Any) -> Any:
        """The DataFrame with a column: the number of the nearest centre."""
        import pandas as pd
        from pyspark.sql.functions import pandas_udf

        centres, squares = self._centres, (self._centres**2).sum(axis=1)

        def nearest(column: Any) -> Any:
            rows = np.stack(
                [np.asarray(getattr(r, "toArray", lambda r=r: r)(), float) for r in column]
            )
            return pd.Series((squares - 2 * rows @ centres.T).argmin(axis=1).astype(np.int32))

        nearest.__annotations__ = {"column": pd.Series, "return": pd.Series}  # which Spark reads
        predicted = pandas_udf(nearest, "int")(_arrays(dataset, self._features))
        return dataset.withColumn(self._prediction, predicted)


class SingularValueDecomposition:
    """
    Attributes:
        U: a Spark DataFrame with a column ``row`` of arrays; None unless it was computed.
        s: singular values.
        V: (columns, k).
    """

    def __init__(self, U: Any, s: np.ndarray, V: np.ndarray):
        self.U, self.s, self.V = U, s, V


class RowMatrix:
    """A DataFrame with one column of arrays or vectors, or one of numbers for each column, on the ranks.

    It stays there until :meth:`free`.
    """

    def __init__(self, rows: Any, *, session: Session | None = None):
        self._session, self._own = session or connect(), session is None
        self._spark, self._matrix = rows.sparkSession, self._session.send(rows)

    def numRows(self) -> int:
        return int(self._matrix.shape[0])

    def numCols(self) -> int:
        return int(self._matrix.shape[1])

    def computeSVD(
        self, k: int, computeU: bool = False, rCond: float = 1e-9
    ) -> SingularValueDecomposition:
        """The ``k`` largest singular values, those below ``rCond`` times the largest left out."""
        made = self._session.linalg.svd(self._matrix, k=k)
        s = np.asarray(made.s.to_numpy())
        kept = int((s > rCond * s[0]).sum()) if s.size else 0
        v = np.asarray(made.v.to_numpy())[:, :kept]
        u = made.u.to_spark(self._spark) if computeU else None
        if u is None:
            made.u.free()
        elif kept < k:
            from pyspark.sql.functions import expr

            u = u.withColumn("row", expr(f"slice(row, 1, {kept})"))
        return SingularValueDecomposition(u, s[:kept], v)

    def computePrincipalComponents(self, k: int) -> np.ndarray:
        """(columns, k)."""
        return np.asarray(self._session.linalg.pca(self._matrix, k=k).components.to_numpy())

    def computeGramianMatrix(self) -> np.ndarray:
        """(columns, columns)."""
        return np.asarray(self._session.linalg.gramian(self._matrix).gramian.to_numpy())

    def free(self) -> None:
        """Frees the matrix on the ranks; the table's own connection takes with it what U was to be fetched from."""
        if self._own:
            self._session.close()
        else:
            self._matrix.free()


def _arrays(dataset: Any, column: str) -> Any:
    """A column of arrays; of vectors, their arrays."""
    from pyspark.sql.functions import col

    if dataset.schema[column].dataType.simpleString() in ("vector", "udt"):
        from pyspark.ml.functions import vector_to_array

        return vector_to_array(col(column))
    return col(column)


def _with_array(dataset: Any, source: str, target: str, by: np.ndarray) -> Any:
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def product(column: Any) -> Any:
        return pd.Series(list(np.stack(column.to_numpy()).astype(float) @ by))

    product.__annotations__ = {"column": pd.Series, "return": pd.Series}  # which Spark reads
    return dataset.withColumn(
        target, pandas_udf(product, "array<double>")(_arrays(dataset, source))
    )
