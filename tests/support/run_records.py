"""A made-up run, for what is written, read and compared of records."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

from fairlead.image.keys import PrivateKey
from fairlead.proof.verdict import Proof, RankProof
from fairlead.record import folder
from fairlead.record.gather import Attached
from fairlead.record.model import (
    Before,
    Code,
    Data,
    Environment,
    HostFacts,
    ImageUsed,
    Library,
    Mpi,
    Outcome,
    Parameters,
    RankGroup,
    Ranks,
    RunRecord,
)

ATTACHED = Attached(gzip.compress(b"{}", mtime=0), gzip.compress(b"lock", mtime=0))


def data(name: str, sha256: str = "ab" * 32, kind: str = "file") -> Data:
    return Data(name, f"/work/{name}", kind, sha256, 5)


def run_record(exit_code: int = 0, **results: str) -> RunRecord:
    """A run of two ranks; ``results`` are sha256 by name."""
    before = Before(
        image=ImageUsed("app", "/images/app.sif", "sif", "cd" * 32, "ef" * 32, "app", "01" * 32, "23" * 32),
        parameters=Parameters(("--ranks", "2"), "app", ("python3", "train.py", "--epochs", "3"), "/work"),
        script=data("train.py"),
        code=Code("/work", "1" * 40, "https://example.org/me/science.git"),
        inputs=(data("in.h5"), data("shards", kind="folder")),
        environment=Environment({"OMP_NUM_THREADS": "1"}, {"LD_LIBRARY_PATH": "/opt/fairlead/mpi/lib"}, ("HF_TOKEN",)),
        host=HostFacts("node1", "Debian", "6.1", "x86_64", "EPYC", "laptop", "apptainer 1.4", "MPICH Hydra 5.0", user="me"),
        mpi=Mpi("host", "MPICH 5.0.2", "/opt/fairlead/mpi/lib/libmpi.so.12"),
        fairlead="0.1.0",
    )  # fmt: skip
    group = RankGroup("0-1", before.mpi.file, "MPICH Version: 5.0.2", "ucx: cma, sysv")
    libraries = (
        Library(before.mpi.file, "host", "45" * 32),
        Library("/usr/lib/libc.so.6", "image"),
    )
    outcome = Outcome(
        exit_code,
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:09Z",
        9.0,
        "it failed" * bool(exit_code),
    )
    return RunRecord(
        "974f43d2-6029-4810-ac4f-29bbc1d5d637",
        before,
        Ranks(2, True, {"node1": "0-1"}, (group,), libraries),
        tuple(data(name, sha256) for name, sha256 in results.items()),
        outcome,
    )


def written(path: Path, record: RunRecord, key: PrivateKey | None = None) -> Path:
    folder.write(path, record, ATTACHED, key)
    return path


def without_sources(record: RunRecord) -> RunRecord:
    """A run of a program of the image, which reads and writes nothing."""
    return replace(
        record, results=(), before=replace(record.before, script=None, code=None, inputs=())
    )


def proof_of(count: int) -> Proof:
    """A proof of ranks on nodes with eight each."""
    file = "/opt/fairlead/mpi/lib/libmpi.so.12"

    def rank(number: int) -> RankProof:
        return RankProof(
            number, count, f"nid{number // 8:06}", file, 5, 1, "MPICH Version: 5.0.2", "ofi", ("cxi", "shm"),
            ring_ok=True, namespaces={}, devices=("/dev/cxi0",),
        )  # fmt: skip

    return Proof(count, file, 5, "MPICH 5.0.2", tuple(map(rank, range(count))), (), 1.0)
