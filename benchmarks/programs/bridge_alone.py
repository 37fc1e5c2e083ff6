"""Truncated SVDs without a bridge: ``bridge_alone.py SOCKET SIDE FILE``.

SIDE: ``program``, the bridge's own function called by an MPI program; ``plain``, the same method in NumPy and mpi4py;
``dask`` and ``sklearn``, in one process on two threads.
"""

import os
import sys

if sys.argv[2] in ("program", "plain"):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"

import time

import numpy as np
import turns

K, MORE, STEPS = 20, 10, 2


def _share(path):
    """This rank's rows."""
    from mpi4py import MPI

    data, world = np.load(path, mmap_mode="r"), MPI.COMM_WORLD
    low, high = (data.shape[0] * (world.rank + i) // world.size for i in (0, 1))
    return np.array(data[low:high]), world


def program(path):
    from fairlead.bridge.collectives import Collectives
    from fairlead.bridge.library import Block
    from fairlead.bridge.linalg.matrix import Matrix
    from fairlead.bridge.linalg.truncated import randomised

    local, world = _share(path)
    counts = world.allgather(len(local))
    shape = (sum(counts), local.shape[1])
    block = Block(local, sum(counts[: world.rank]), shape, Collectives(world))
    return lambda: randomised(Matrix(block), K, oversample=MORE, power_steps=STEPS).s


def plain(path):
    """Y = A Omega, power steps on A'A with QR in between, then the SVD of a small matrix; nothing is tuned."""
    from mpi4py import MPI

    local, world = _share(path)

    def total(array):
        world.Allreduce(MPI.IN_PLACE, array)
        return array

    def svd():
        x = np.random.default_rng(0).standard_normal((local.shape[1], K + MORE))
        for _ in range(STEPS):
            x = np.linalg.qr(total(local.T @ (local @ x)))[0]
        y = local @ x
        r = np.linalg.cholesky(total(y.T @ y)).T
        q = np.linalg.solve(r.T, y.T).T
        _, s, v = np.linalg.svd(total(q.T @ local), full_matrices=False)
        local @ v[:K].T  # the left vectors, as the bridge returns them
        return s[:K]

    return svd


def dask(path):
    import dask
    import dask.array as da

    dask.config.set(scheduler="threads", num_workers=2)
    array = da.from_array(np.load(path), chunks=(10_000, -1))

    def svd():
        _, s, v = da.linalg.svd_compressed(array, k=K, n_power_iter=STEPS, seed=0)
        return dask.compute(s, v)[0]

    return svd


def sklearn(path):
    sys.path.append(os.environ["BENCH_PACKAGES"])
    from sklearn.decomposition import TruncatedSVD

    array = np.load(path)
    return lambda: (
        TruncatedSVD(K, n_iter=STEPS, n_oversamples=MORE, random_state=0)
        .fit(array)
        .singular_values_
    )


def main(path, side, file):
    svd = {"program": program, "plain": plain, "dask": dask, "sklearn": sklearn}[side](file)

    def timed():
        begun = time.perf_counter()
        values = svd()
        return [time.perf_counter() - begun, [float(value) for value in values]]

    turns.serve(path, {"svd": timed})


if __name__ == "__main__":
    main(*sys.argv[1:])
