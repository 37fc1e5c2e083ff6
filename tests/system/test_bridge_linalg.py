"""The bridge's numerics on real ranks, against NumPy: 1, 2 and 4 ranks, float64 and float32, a rank without rows.

The bars of float64 are those of the functions' declaration; float32 has them times 10 million, 0.001 at most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.system import hosts

import fairlead

RUNTIME = Path(fairlead.__file__).parents[1]
SIZES, TYPES = (1, 2, 4), ("float64", "float32")
both = pytest.mark.parametrize("kind", TYPES)
sizes = pytest.mark.parametrize(
    "size", [pytest.param(n, marks=() if n == 2 else pytest.mark.full) for n in SIZES]
)


def started(size: int, program: str | Path, *words: str, libraries: tuple[Path, ...] = ()) -> str:
    prefix = hosts.mpich()
    folders = map(str, (prefix / "lib", *libraries))
    environ = {
        **os.environ, "LD_LIBRARY_PATH": ":".join(folders), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(RUNTIME),
    }  # fmt: skip
    preload = f"LD_PRELOAD={prefix}/lib/libmpi.so.12"
    script = str(hosts.PROGRAMS / program)
    # An exception of one rank ends all: the others would wait for it.
    command = ["env", preload, sys.executable, "-m", "mpi4py", script, *words]
    done = subprocess.run(
        ["nice", prefix / "bin/mpiexec", "-n", str(size), *command],
        capture_output=True, text=True, env=environ, timeout=300, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@cache
def figures(size: int, kind: str) -> dict[str, Any]:
    """What ``programs/bridge_linalg.py`` measures."""
    return json.loads(started(size, "bridge_linalg.py", kind))


def bar(kind: str, double: float) -> float:
    return double if kind == "float64" else min(double * 1e7, 1e-3)


@sizes
@both
def test_matmul_agrees_with_numpy(size: int, kind: str) -> None:
    case = figures(size, kind)["matmul"]
    assert case.pop("type") == 0
    assert max(case.values()) < bar(kind, 1e-12), case


@sizes
@both
def test_transpose_moves_every_bit(size: int, kind: str) -> None:
    assert set(figures(size, kind)["transpose"].values()) == {0.0}


@sizes
@both
def test_gramian_agrees_with_numpy(size: int, kind: str) -> None:
    case = figures(size, kind)["gramian"]
    assert max(case.values()) < bar(kind, 1e-12), case


@sizes
@both
def test_qr_reproduces_the_matrix_and_is_orthogonal(size: int, kind: str) -> None:
    case = figures(size, kind)["qr"]
    assert {case.pop(name) for name in list(case) if name.endswith("_type")} == {0.0}
    assert len(case) == 6 and max(case.values()) < bar(kind, 1e-13), case


@sizes
@both
@pytest.mark.parametrize("method", ["randomized", "lanczos"])
@pytest.mark.parametrize("shape", ["tall", "wide", "all"])
def test_svd_finds_the_triplets(size: int, kind: str, method: str, shape: str) -> None:
    case = figures(size, kind)["svd"][f"{shape}_{method}"]
    assert case["type"] == 0
    assert case["values"] < bar(kind, 1e-8) and case["orthogonal"] < bar(kind, 1e-13)
    assert case["vectors"] < bar(kind, 1e-10) and case["residual"] < bar(kind, 1e-12)


@sizes
@both
def test_svd_of_sparse_low_rank_and_zero_matrices_is_exact(size: int, kind: str) -> None:
    svd = figures(size, kind)["svd"]
    for name in ("sparse_lanczos", "low_rank", "zero"):
        assert svd[name]["values"] < bar(kind, 1e-12), name
        assert svd[name]["residual"] < bar(kind, 1e-10), name
        assert svd[name]["orthogonal"] < bar(kind, 1e-13), name


@sizes
@both
def test_svd_states_the_residual_where_values_do_not_decay(size: int, kind: str) -> None:
    case = figures(size, kind)["svd"]["flat"]
    assert case["stated"] < bar(kind, 1e-13) and case["worse"]


@sizes
@both
def test_more_than_65535_columns_are_no_limit(size: int, kind: str) -> None:
    case = figures(size, kind)["many_columns"]
    assert case.pop("type") == 0
    assert max(case.values()) < bar(kind, 1e-10), case


@sizes
@both
@pytest.mark.parametrize("method", ["randomized", "lanczos"])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_pca_agrees_with_the_svd_of_the_centred_matrix(
    size: int, kind: str, method: str, form: str
) -> None:
    case = figures(size, kind)["pca"][f"{form}_{method}"]
    assert case.pop("type") == 0
    assert max(case.values()) < bar(kind, 1e-10), case


@sizes
@both
@pytest.mark.parametrize("data", ["near", "far"])
@pytest.mark.parametrize("init", ["k-means||", "random"])
def test_kmeans_lowers_the_inertia_to_what_the_centres_have(
    size: int, kind: str, data: str, init: str
) -> None:
    case = figures(size, kind)["kmeans"][f"{data}_{init}"]
    assert case["type"] == 0 and case["sizes"] == 0 and case["steps"] > 2
    assert case["increase"] <= bar(kind, 1e-14) and case["inertia"] < bar(kind, 1e-10)


@pytest.mark.parametrize("kind", ["float64", pytest.param("float32", marks=pytest.mark.full)])
@pytest.mark.parametrize("data", [pytest.param("near", marks=pytest.mark.full), "far"])
@pytest.mark.parametrize("init", ["k-means||", "random"])
def test_kmeans_does_not_depend_on_the_number_of_ranks(kind: str, data: str, init: str) -> None:
    alone, *others = (figures(size, kind)["kmeans"][f"{data}_{init}"] for size in SIZES)
    for other in others:
        assert other["labels"] == alone["labels"]
        near = np.allclose(other["centers"], alone["centers"], rtol=bar(kind, 1e-13), atol=0)
        assert near and other["steps"] == alone["steps"]


@sizes
@both
def test_kmeans_finds_clusters_that_are_apart(size: int, kind: str) -> None:
    kmeans = figures(size, kind)["kmeans"]
    assert kmeans["near"]["pairs"] == kmeans["far"]["pairs"] == 6
    assert kmeans["sparse"]["centers"] < bar(kind, 1e-12)
    assert kmeans["equal_rows"]["inertia"] == 0


def test_kmeans_uses_each_of_its_parameters() -> None:
    options = figures(2, "float64")["kmeans"]["options"]
    assert len(options["steps"]) == 2 and len(options["more"]) > 4
    assert options["more"][:2] == options["steps"]
    assert len(options["loose"]) == 2  # a large tolerance ends it after one step
    assert options["seed"] != options["steps"]
    assert options["rounds5"][0] < options["rounds"][0] / 10  # candidates far from each other


@sizes
@both
def test_least_squares_solve_the_normal_equations(size: int, kind: str) -> None:
    case = figures(size, kind)["lstsq"]
    cut = case.pop("cut", {"converged": False, "steps": 2})
    assert cut == {"converged": False, "steps": 2}
    for name, made in case.items():
        assert made["converged"] and made["type"] == 0, name
        assert made["normal"] < bar(kind, 1e-10) and made["x"] < bar(kind, 1e-9), (name, made)
    methods = {name: (made["method"], made["rank"]) for name, made in case.items()}
    assert methods == {
        "tall": ("tsqr", 20), "tall_lsqr": ("lsqr", None), "wide": ("lsqr", None),
        "wide_tsqr": ("tsqr", 15), "sparse": ("lsqr", None), "deficient": ("tsqr", 6),
    }  # fmt: skip


@sizes
@both
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_ridge_agrees_with_the_dense_solution(size: int, kind: str, form: str) -> None:
    case = figures(size, kind)["ridge"][form]
    assert case["converged"] and case["type"] == 0
    assert case["x"] < bar(kind, 1e-10) and case["residual"] < bar(kind, 1e-11)
    assert abs(case["last"] - case["residual"]) < bar(kind, 1e-11)


@sizes
@both
def test_statistics_agree_with_numpy(size: int, kind: str) -> None:
    cases = dict(figures(size, kind)["statistics"])
    scaled = cases.pop("standardize")
    for name, case in cases.items():
        assert case["nnz"] == case["min"] == case["max"] == 0, name
        assert max(case["mean"], case["var"]) < bar(kind, 1e-13), (name, case)
    assert scaled["type"] == 0
    assert max(scaled["dense"], scaled["sparse"]) < bar(kind, 1e-11), scaled


@sizes
def test_integers_are_computed_as_float64(size: int) -> None:
    case = figures(size, "float32")["integers"]
    assert case["double"] == 0 and case["values"] < 1e-13


@sizes
def test_what_cannot_be_done_is_refused_by_every_rank(size: int) -> None:
    refused = figures(size, "float64")["refusals"]
    absent = "serve an image that has it, such as bridge:scalapack"
    assert "the image has no ScaLAPACK" in refused["scalapack"] and absent in refused["scalapack"]
    assert "the image has no SLEPc" in refused["slepc"] and absent in refused["slepc"]
    assert refused["svd"].split(";")[0] == "k = 7 is out of range for linalg.svd"
    assert refused["svd0"].split(";")[0] == "k = 0 is out of range for linalg.svd"
    assert refused["pca"].startswith("k = 7 is out of range for linalg.pca")
    assert refused["kmeans"].startswith("k = 21 is out of range for linalg.kmeans")
    assert "6 and 20 must be equal" in refused["matmul"]
    assert "20 and 19 must be equal" in refused["lstsq"]
    for name in ("qr", "standardize", "tsqr"):
        assert "does not take a sparse matrix" in refused[name]
    assert refused["ridge"].split(";")[0] == "linalg.ridge does not take penalty=-1.0"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_layouts_come_back_bit_for_bit(size: int) -> None:
    assert started(size, "bridge_layout.py", "60") == "60 came back\n"


@sizes
def test_scalapack_agrees_with_numpy(size: int, tmp_path: Path) -> None:
    # Debian's build for MPICH, which asks for the library by Debian's name.
    names = ("libscalapack-mpich2.2", "libopenblas0-serial", "libgfortran5", "libquadmath0")
    below = hosts.debian_files("bookworm", *names) / "usr/lib/x86_64-linux-gnu"
    (tmp_path / "libmpich.so.12").symlink_to(hosts.mpich() / "lib/libmpi.so.12")
    script = hosts.ROOT / "recipes/bridge/verify-scalapack"
    said = started(size, script, "dense", libraries=(below, below / "openblas-serial", tmp_path))
    assert said.startswith(f"ok: ScaLAPACK and NumPy agree on {size} ranks, MPICH"), said
