"""The side of a session that has tables: this process, the executors of Spark, the workers of Dask."""
