"""The ten largest principal components of a table, computed by MPI ranks.

$ fairlead bridge serve -n 2 --background bridge
$ python3 examples/bridge.py
$ fairlead bridge stop
"""

import numpy as np

from fairlead.bridge import connect

rows, columns = 20_000, 200
random = np.random.default_rng(1)
table = random.normal(size=(rows, columns)) * 0.9 ** np.arange(columns)

with connect() as mpi:
    matrix = mpi.send(table)
    print(f"sent: {matrix.transfer}")
    pca = mpi.linalg.pca(matrix, k=10)
    print(f"computed in {pca.timing['slowest']:.2f} s on {len(mpi.ranks)} ranks")
    share = pca.explained_variance_ratio.to_numpy()
    print("explained:", " ".join(f"{part:.3f}" for part in share))
    assert share.sum() > 0.85
