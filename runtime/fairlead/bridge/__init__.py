"""Spark, Dask, pandas ⇔ MPI: tables are sent to the ranks of a proved job, which compute on them as matrices."""
