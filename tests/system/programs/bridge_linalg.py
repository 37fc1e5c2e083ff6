"""Every rank: the functions of the bridge's library on matrices dealt unevenly, one rank with nothing; rank 0 prints
what they are off by, as JSON. ``bridge_linalg.py FLOAT``, e.g. float32."""

import json
import sys

import numpy as np
import scipy.sparse
from mpi4py import MPI

from fairlead.base.errors import FairleadError
from fairlead.bridge.collectives import Collectives
from fairlead.bridge.libraries import scalapack, slepc
from fairlead.bridge.libraries.linalg import LIBRARY
from fairlead.bridge.library import Block, Rows, Whole
from fairlead.bridge.linalg import blacs

COMM = Collectives(MPI.COMM_WORLD.Dup())
FLOAT = np.dtype(sys.argv[1])
DOUBLE = FLOAT.itemsize == 8
SHARES = {1: [1.0], 2: [0.7, 0.3], 3: [0.0, 0.6, 0.4], 4: [0.45, 0.0, 0.35, 0.2]}[COMM.size]
RANDOM = np.random.default_rng(42)


def dealt(whole, shares=None, start=0):
    """This rank's block; all ranks have made the same whole."""
    rows = whole.shape[0]
    ends = np.round(np.cumsum([0.0, *(shares or SHARES)]) * rows).astype(int)
    begin, end = ends[COMM.rank], ends[COMM.rank + 1]
    local = whole[begin:end].copy()
    if not scipy.sparse.issparse(local):
        local.flags.writeable = False  # as what a rank holds is
    return Block(local, int(begin), whole.shape, COMM)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(FLOAT)


def call(name, *matrices, **params):
    """The function's results, each whole as float64, and of the type that the function gave it."""
    function = LIBRARY.get(name)
    results = {}
    for key, value in function.call(*matrices, **function.checked("linalg", params)).items():
        if isinstance(value, Rows):
            local = value.local.toarray() if scipy.sparse.issparse(value.local) else value.local
            results[key] = COMM.stacked(local if local.ndim > 1 else local[:, None])
            assert local.flags.c_contiguous, key
            if local.ndim == 1:
                results[key] = results[key][:, 0]
        else:
            results[key] = value.array if isinstance(value, Whole) else value
    return results


def off(value, right):
    value, right = np.asarray(value, np.float64), np.asarray(right, np.float64)
    assert value.shape == right.shape, (value.shape, right.shape)
    norm = np.linalg.norm(right)
    return float(np.linalg.norm(value - right) / (norm or 1.0))


def orthogonal(q):
    q = np.asarray(q, np.float64)
    return float(np.linalg.norm(q.T @ q - np.eye(q.shape[1])))


def kept(*arrays):
    """0 where all have the type that went in."""
    return float(any(array.dtype != FLOAT for array in arrays))


def decaying(rows, columns, rate=0.5, rank=None):
    """A matrix whose singular values fall from 1 by ``rate``."""
    count = rank or min(rows, columns)
    left = np.linalg.qr(RANDOM.standard_normal((rows, count)))[0]
    right = np.linalg.qr(RANDOM.standard_normal((columns, count)))[0]
    return ((left * rate ** np.arange(count)) @ right.T).astype(FLOAT)


def sparse(rows, columns, density):
    made = scipy.sparse.random_array((rows, columns), density=density, rng=RANDOM, format="csr")
    return scipy.sparse.csr_array(made.astype(FLOAT))


def matmul():
    a, b, c = normal(203, 61), normal(61, 17), normal(203, 9)
    product, crossed = call("matmul", dealt(a), dealt(b))["product"], "product"
    even = dealt(c, [1 / COMM.size] * COMM.size)  # other rows on the ranks than those of a
    across = call("matmul", dealt(a), even, transpose_a=True)[crossed]
    thin, thick = sparse(203, 61, 0.1), sparse(61, 17, 0.2)
    wide = a.astype(np.float64)
    return {
        "plain": off(product, wide @ b),
        "transposed": off(across, wide.T @ c),
        "sparse_dense": off(call("matmul", dealt(thin), dealt(b))["product"], thin @ b),
        "dense_sparse": off(call("matmul", dealt(a), dealt(thick))["product"], a @ thick.toarray()),
        "sparse_sparse": off(
            call("matmul", dealt(thin), dealt(thick))["product"], (thin @ thick).toarray()
        ),
        "sparse_transposed": off(
            call("matmul", dealt(thin), dealt(c), transpose_a=True)["product"], thin.T @ c
        ),
        "type": kept(product, across),
    }


def transpose():
    a, thin = normal(50, 23), sparse(40, 31, 0.2)
    whole = np.arange(60, dtype=np.int32).reshape(20, 3)
    return {
        "dense": off(call("transpose", dealt(a))["transposed"], a.T),
        "sparse": off(call("transpose", dealt(thin))["transposed"], thin.toarray().T),
        "int": off(call("transpose", dealt(whole))["transposed"], whole.T),
    }


def gramian():
    a, thin = normal(301, 40), sparse(300, 50, 0.1)
    wide = a.astype(np.float64)
    return {
        "dense": off(call("gramian", dealt(a))["gramian"], wide.T @ wide),
        "sparse": off(call("gramian", dealt(thin))["gramian"], (thin.T @ thin).toarray()),
    }


def qr():
    figures = {}
    cases = {
        "tall": normal(997, 40), "panels": normal(9000, 12), "few_rows": normal(10, 8),
        "wide": normal(7, 30), "deficient": decaying(300, 20, 1.0, 9), "graded": decaying(500, 30, 0.3),
    }  # fmt: skip
    for name, a in cases.items():
        made = call("qr", dealt(a))
        bound = np.sqrt(a.shape[1])
        figures[name] = max(
            off(made["q"].astype(np.float64) @ made["r"], a) / bound, orthogonal(made["q"]) / bound
        )
        assert (np.diagonal(made["r"]) >= 0).all(), name
        assert not np.tril(made["r"], -1).any(), name
        figures[f"{name}_type"] = kept(made["q"], made["r"])
    return figures


def triplets(a, made, k):
    whole = np.asarray(a.todense() if hasattr(a, "todense") else a, np.float64)
    _, s, v = np.linalg.svd(whole, full_matrices=False)
    figures = {
        "values": float(np.abs(made["s"] - s[:k]).max() / s[0]),
        "orthogonal": max(orthogonal(made["u"]), orthogonal(made["v"])),
        "residual": made["residual"],
        "type": kept(made["u"], made["s"], made["v"]),
    }
    v = v[:k].T * np.sign(v[:k].T[np.abs(v[:k]).argmax(1), range(k)])
    gaps = (s[:k] - np.append(s[1:k], s[k] if len(s) > k else 0)) > 1e-3 * s[0]
    figures["vectors"] = off(made["v"][:, gaps], v[:, gaps])
    return figures


def svd():
    figures = {}
    tall, wide, thin = decaying(400, 60), decaying(30, 90), sparse(300, 80, 0.1)
    for name, a, k in (("tall", tall, 10), ("wide", wide, 8), ("all", wide[:6], 6)):
        for method in ("randomized", "lanczos"):
            made = call("svd", dealt(a), k=k, method=method, tol=1e-12 if DOUBLE else 1e-5)
            assert made["converged"] is (True if method == "lanczos" else None)
            figures[f"{name}_{method}"] = triplets(a, made, k)
    exact = call("svd", dealt(thin), k=5, method="lanczos", tol=1e-12 if DOUBLE else 1e-5)
    figures["sparse_lanczos"] = triplets(thin, exact, 5)
    low = decaying(200, 40, 0.7, 6)
    figures["low_rank"] = triplets(low, call("svd", dealt(low), k=6, power_steps=0), 6)
    zero = call("svd", dealt(np.zeros((20, 5), FLOAT)), k=3, method="lanczos")
    figures["zero"] = {"values": float(np.abs(zero["s"]).max()), "residual": zero["residual"],
                       "orthogonal": max(orthogonal(zero["u"]), orthogonal(zero["v"]))}  # fmt: skip
    flat = normal(300, 50)
    slow = call("svd", dealt(flat), k=5, power_steps=0)
    right = call("svd", dealt(flat), k=5, power_steps=12)
    rest = flat.astype(np.float64) @ slow["v"] - slow["u"].astype(np.float64) * slow["s"]
    figures["flat"] = {
        "stated": abs(slow["residual"] - float(np.linalg.norm(rest) / np.linalg.norm(flat))),
        "worse": float(slow["residual"] > 10 * right["residual"]),
    }
    return figures


def many_columns():
    """More than 65,535 columns, sparse and few dense rows."""
    columns = 70_000
    thin, few = sparse(500, columns, 0.0005), decaying(40, columns)
    again = call("svd", dealt(thin), k=3, method="lanczos", tol=1e-10 if DOUBLE else 1e-5)
    gram = (thin.astype(np.float64) @ thin.T).toarray()
    values = np.sqrt(np.linalg.eigvalsh(gram)[::-1][:3])
    made = call("svd", dealt(few), k=5)
    parts = call("pca", dealt(thin), k=2, method="lanczos")
    mean = np.asarray(thin.mean(0), np.float64)
    inner = thin.astype(np.float64) @ mean
    centred = gram - inner[:, None] - inner[None, :] + mean @ mean
    return {
        "sparse": off(again["s"], values),
        "few_rows": float(np.abs(made["s"] - 0.5 ** np.arange(5)).max()),
        "pca": off(parts["explained_variance"], np.linalg.eigvalsh(centred)[::-1][:2] / 499),
        "type": kept(made["v"], again["v"]),
    }


def pca():
    figures = {}
    base = (decaying(300, 30, 0.6) * 20 + RANDOM.standard_normal(30) * 5).astype(FLOAT)
    thin = sparse(200, 40, 0.2)
    thin.data *= FLOAT.type(0.6) ** thin.indices
    for name, a in (("dense", base), ("sparse", thin)):
        whole = np.asarray(a.todense() if name == "sparse" else a, np.float64)
        centred = whole - whole.mean(0)
        _, s, v = np.linalg.svd(centred, full_matrices=False)
        v = v[:4].T * np.sign(v[:4].T[np.abs(v[:4]).argmax(1), range(4)])
        for method in ("randomized", "lanczos"):
            made = call("pca", dealt(a), k=4, method=method, power_steps=4)
            figures[f"{name}_{method}"] = {
                "components": off(made["components"], v),
                "variance": off(made["explained_variance"], s[:4] ** 2 / (len(whole) - 1)),
                "ratio": off(made["explained_variance_ratio"], s[:4] ** 2 / (s @ s)),
                "scores": off(made["scores"], centred @ v),
                "mean": off(made["mean"], whole.mean(0)),
                "type": kept(made["components"], made["scores"]),
            }
    return figures


def blobs(rows=2000, columns=8, k=6, far=0.0):
    centers = RANDOM.standard_normal((k, columns)) * 10 + far
    labels = RANDOM.integers(k, size=rows)
    return (centers[labels] + RANDOM.standard_normal((rows, columns))).astype(FLOAT), labels


def kmeans():
    figures = {}
    for name, far in (("near", 0.0), ("far", 1e4)):
        a, labels = blobs(far=far)
        for init in ("k-means||", "random"):
            made = call("kmeans", dealt(a), k=6, init=init, iterations=50, tol=0.0, seed=3)
            history, found = np.array(made["history"]), made["labels"]
            rest = a.astype(np.float64) - made["centers"].astype(np.float64)[found]
            figures[f"{name}_{init}"] = {
                "increase": float(np.max(np.diff(history) / history[:-1], initial=0.0)),
                "inertia": abs(float((rest**2).sum()) / made["inertia"] - 1),
                "sizes": off(made["sizes"], np.bincount(found, minlength=6)),
                "type": kept(made["centers"]),
                "steps": len(history),
                "labels": [int(n) for n in found[:200]],
                "centers": made["centers"].tolist(),
            }
        pairs = {
            (int(x), int(y))
            for x, y in zip(labels, call("kmeans", dealt(a), k=6, seed=1)["labels"], strict=True)
        }
        figures[name] = {"pairs": len(pairs)}
    thin = sparse(300, 50, 0.1)
    dense, csr = (call("kmeans", dealt(m), k=4, seed=5) for m in (thin.toarray(), thin))
    figures["sparse"] = {"centers": off(csr["centers"], dense["centers"])}
    a, _ = blobs()
    runs = {
        "steps": call("kmeans", dealt(a), k=6, iterations=1, tol=0.0, init="random", seed=8)[
            "history"
        ],
        "more": call("kmeans", dealt(a), k=6, iterations=40, tol=0.0, init="random", seed=8)[
            "history"
        ],
        "loose": call("kmeans", dealt(a), k=6, iterations=40, tol=1e9, init="random", seed=8)[
            "history"
        ],
        "seed": call("kmeans", dealt(a), k=6, iterations=1, tol=0.0, init="random", seed=9)[
            "history"
        ],
        "rounds": call("kmeans", dealt(a), k=6, iterations=0, init_steps=0)["history"],
        "rounds5": call("kmeans", dealt(a), k=6, iterations=0, init_steps=5)["history"],
    }
    figures["options"] = runs
    same = np.ones((12, 2), FLOAT)
    figures["equal_rows"] = {"inertia": call("kmeans", dealt(same), k=3)["inertia"]}
    return figures


def lstsq():
    tall, wide, thin = normal(400, 20), normal(15, 40), sparse(300, 25, 0.3)
    right, short, low = normal(400, 3), normal(15, 2), decaying(100, 20, 0.8, 6)
    figures = {}
    loose = 1e-13 if DOUBLE else 1e-6
    cases = {
        "tall": (tall, right, {}), "tall_lsqr": (tall, right, {"method": "lsqr", "tol": loose}),
        "wide": (wide, short, {"tol": loose}), "wide_tsqr": (wide, short, {"method": "tsqr"}),
        "sparse": (thin, normal(300, 1), {"tol": loose}), "deficient": (low, normal(100, 2), {}),
    }  # fmt: skip
    for name, (a, b, options) in cases.items():
        made = call("lstsq", dealt(a), dealt(b, [1 / COMM.size] * COMM.size), **options)
        whole = np.asarray(a.todense() if a is thin else a, np.float64)
        x = np.linalg.lstsq(whole, b.astype(np.float64), rcond=1e-5)[0]
        figures[name] = {
            "x": off(made["x"], x), "normal": made["normal_residual"], "converged": made["converged"],
            "method": made["method"], "rank": made["rank"], "type": kept(made["x"]),
        }  # fmt: skip
    short = call("lstsq", dealt(tall), dealt(right), method="lsqr", iterations=2)
    figures["cut"] = {"converged": short["converged"], "steps": len(short["history"])}
    return figures


def ridge():
    figures = {}
    tol = 1e-12 if DOUBLE else 1e-6
    for name, a in (("dense", normal(300, 40)), ("sparse", sparse(300, 40, 0.2))):
        b = normal(300, 2)
        whole = np.asarray(a.todense() if name == "sparse" else a, np.float64)
        x = np.linalg.solve(whole.T @ whole + 2.5 * np.eye(40), whole.T @ b)
        made = call("ridge", dealt(a), dealt(b), penalty=2.5, tol=tol)
        figures[name] = {
            "x": off(made["x"], x), "last": made["history"][-1], "residual": made["residual"],
            "converged": made["converged"], "type": kept(made["x"]),
        }  # fmt: skip
    return figures


def statistics():
    figures = {}
    far = (RANDOM.standard_normal((5000, 6)) + 1e3).astype(FLOAT)
    far[::7, 2] = 0
    whole = RANDOM.integers(-5, 5, (100, 4)).astype(np.int64)
    thin = sparse(200, 30, 0.2)
    thin.data -= FLOAT.type(0.5)
    for name, a in (("dense", far), ("int", whole), ("sparse", thin)):
        dense = np.asarray(a.todense() if name == "sparse" else a, np.float64)
        made = call("column_stats", dealt(a))
        figures[name] = {
            "mean": off(made["mean"], dense.mean(0)), "var": off(made["var"], dense.var(0, ddof=1)),
            "min": off(made["min"], dense.min(0)), "max": off(made["max"], dense.max(0)),
            "nnz": off(made["nnz"], np.count_nonzero(dense, axis=0)),
        }  # fmt: skip
    constant = far.copy()
    constant[:, 1] = 7
    made = call("standardize", dealt(constant))
    values = made["standardized"].astype(np.float64)
    deviation = constant.astype(np.float64).std(0, ddof=1)
    right = (constant.astype(np.float64) - constant.mean(0, dtype=np.float64)) / np.where(
        deviation, deviation, 1
    )
    scaled = call("standardize", dealt(thin), center=False)["standardized"]
    whole = thin.toarray().astype(np.float64)
    figures["standardize"] = {"dense": off(values, right), "type": kept(made["standardized"]),
                              "sparse": off(scaled, whole / whole.std(0, ddof=1))}  # fmt: skip
    return figures


def integers():
    a = RANDOM.integers(-9, 9, (120, 15)).astype(np.int32)
    made = call("svd", dealt(a), k=15, method="lanczos", tol=1e-13)
    s = np.linalg.svd(a.astype(np.float64), compute_uv=False)
    return {"values": off(made["s"], s), "double": float(made["u"].dtype != np.float64)}


def refusals():
    blacs.LIBRARIES = ("libscalapack-absent.so",) * 3
    sys.modules["petsc4py"] = None  # an import of it fails
    a, thin = dealt(normal(20, 6)), dealt(sparse(20, 6, 0.5))
    calls = {
        "svd": (lambda: call("svd", a, k=7)), "svd0": (lambda: call("svd", a, k=0)),
        "pca": (lambda: call("pca", a, k=7)), "kmeans": (lambda: call("kmeans", a, k=21)),
        "matmul": (lambda: call("matmul", a, a)), "lstsq": (lambda: call("lstsq", a, dealt(normal(19, 1)))),
        "qr": (lambda: call("qr", thin)), "standardize": (lambda: call("standardize", thin)),
        "ridge": (lambda: call("ridge", a, a, penalty=-1.0)),
        "tsqr": (lambda: call("lstsq", thin, a, method="tsqr")),
        "scalapack": (lambda: scalapack.svd(a)), "slepc": (lambda: slepc.svd(a, k=1)),
    }  # fmt: skip
    said = {}
    for name, refused in calls.items():
        try:
            refused()
        except FairleadError as exc:
            said[name] = f"{exc}; {exc.findings[0].remedy}"
    return said


CASES = [
    matmul,
    transpose,
    gramian,
    qr,
    svd,
    many_columns,
    pca,
    kmeans,
    lstsq,
    ridge,
    statistics,
    integers,
    refusals,
]
figures = {case.__name__: case() for case in CASES}
if COMM.rank == 0:
    print(json.dumps(figures))
