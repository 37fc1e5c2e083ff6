"""The numerics behind the library ``linalg``: NumPy and SciPy on each rank's rows, collectives between them."""
