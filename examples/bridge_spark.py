"""Executors send a table to the ranks and fetch what comes of it; this process sees the singular values only.

In one allocation with the ranks, where bridge_slurm.sh starts it as ``bridge_spark.py spark://NODE:7077``:

$ INTERFACE=hsn0 sbatch --wait examples/bridge_slurm.sh
"""

import sys

from pyspark.sql import SparkSession

from fairlead.bridge import connect

spark = SparkSession.builder.master(sys.argv[1]).appName("bridge").getOrCreate()
columns = [f"randn({n}) * {0.9**n} as x{n}" for n in range(50)]

with connect() as mpi:
    matrix = mpi.send(spark.range(20_000).selectExpr(*columns))
    u, s, _ = mpi.linalg.svd(matrix, k=5)
    print("singular values:", " ".join(f"{value:.1f}" for value in s.to_numpy()))
    print("rows of u in Spark:", u.to_spark(spark).count())
    print(mpi.timings())
spark.stop()
