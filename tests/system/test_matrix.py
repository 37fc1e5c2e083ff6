"""Pairs of image and host as they were recorded, run again."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.system import hosts, matrix
from tests.system.matrix import APPS, HOSTS, IMAGES, Cell

KNOWN = {
    (c["image"], c["host"], c["app"]): Cell(**{**c, "refused": tuple(c["refused"])})
    for c in json.loads((matrix.RECORDED / "cells.json").read_text())
}
# Pairs of images that other tests build as well; the others belong to `make test-full`.
OFTEN = {
    ("mpich-3.4.3", "mpich-5.0.2", "C"),
    ("mpich-3.4.3", "impi-2021.18.1", "mpi4py"),
    ("mpich-3.4.3", "openmpi-5.0.11", "C"),
    ("mpich-3.4.3", "trixie-mpich-4.2.1", "mpi4py"),
    ("mpich-3.4.3-rpath", "impi-2021.18.1", "C"),
    ("openmpi-4.1.8", "mpich-5.0.2", "mpi4py"),
}
PAIRS = [
    pytest.param(key, id="-on-".join(key), marks=[] if key in OFTEN else [pytest.mark.full])
    for key in KNOWN
]


@pytest.mark.parametrize("key", PAIRS)
def test_pair_is_as_recorded(key: tuple[str, str, str]) -> None:
    image = next(i for i in IMAGES if i.name == key[0])
    host = next(h for h in HOSTS if h.name == key[1])
    seen, known = matrix.run(image, host, key[2]), KNOWN[key]
    if known.refused:  # how a forced run fails is a matter of chance
        seen, known = replace(seen, seen=""), replace(known, seen="")
    assert seen == known


@pytest.mark.parametrize("name", ["mpich-5.0.2", "impi-2021.18.1", "openmpi-5.0.11"])
def test_native_run_of_the_same_mpi_has_the_same_bits(name: str) -> None:
    host = next(h for h in HOSTS if h.name == name)
    prefix = host.prefix()
    mpicc = prefix / "bin/mpicc" if (prefix / "bin/mpicc").exists() else None
    program = hosts.compiled("allreduce", mpicc=mpicc)
    done = subprocess.run(
        [prefix / "bin/mpiexec", "-n", "2", program], capture_output=True, text=True, check=False,
        timeout=60, env={**os.environ, **hosts.AS_ROOT, "LD_LIBRARY_PATH": str(prefix / "lib")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    native = {bits for _, bits in hosts.ranks_of(done.stdout).values()}
    swapped = {c.bits for c in KNOWN.values() if c.host == name and c.app == "C" and c.works}
    assert len(native) == 1 and swapped == native


def test_page_is_what_the_cells_say() -> None:
    assert Path(matrix.PAGE).read_text() == matrix.page(list(KNOWN.values()))
    assert set(APPS) == {c.app for c in KNOWN.values()}
