"""What differs between two runs, in order of importance."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.support.run_records import data, run_record

from fairlead.record import compare
from fairlead.record.compare import Kind
from fairlead.record.model import Library

SEED = 20261126


def test_equal_runs_do_not_differ() -> None:
    record = run_record(out="11" * 32)
    later = replace(
        record, id="another", outcome=replace(record.outcome, ended="later", seconds=1.0)
    )
    assert compare.differences(record, later) == ()


def test_everything_that_differs_is_told_and_results_come_first() -> None:
    a = run_record(**{"out.npy": "11" * 32, "gone": "22" * 32})
    before = a.before
    assert before.code
    b = run_record(3, **{"out.npy": "12" * 32, "new": "33" * 32})
    b = replace(
        b,
        before=replace(
            before,
            image=replace(before.image, sha256="99" * 32),
            script=data("train.py", "77" * 32),
            code=replace(before.code, diff_sha256="66" * 32),
            inputs=(data("in.h5", "88" * 32), before.inputs[1]),
            environment=replace(
                before.environment, shell={"OMP_NUM_THREADS": "2", "SLURM_JOB_ID": "7"}
            ),
            host=replace(before.host, kernel="6.2"),
            mpi=replace(before.mpi, title="MPICH 4.1"),
            fairlead="0.2.0",
        ),
        ranks=replace(
            a.ranks,
            groups=(replace(a.ranks.groups[0], transport="ofi: cxi"),),
            libraries=(
                replace(a.ranks.libraries[0], sha256="54" * 32),
                Library("/new.so", "image"),
            ),
        ),
    )
    found = compare.differences(a, b)
    assert [(d.kind, d.name) for d in found] == [
        (Kind.RESULT, "out.npy"),
        (Kind.RESULT, "gone"),
        (Kind.RESULT, "new"),
        (Kind.EXIT_CODE, "exit code"),
        (Kind.IMAGE, "app"),
        (Kind.SCRIPT, "train.py"),
        (Kind.INPUT, "in.h5"),
        (Kind.CODE, "commit"),
        (Kind.MPI, "planned"),
        (Kind.TRANSPORT, "transport"),
        (Kind.LIBRARY, "/new.so"),
        (Kind.LIBRARY, a.before.mpi.file),
        (Kind.LIBRARY, "/usr/lib/libc.so.6"),
        (Kind.VARIABLE, "OMP_NUM_THREADS"),
        (Kind.HOST, "kernel"),
        (Kind.FAIRLEAD, "version"),
    ]
    lines = list(compare.lines(found))
    assert lines[1] == f"result: gone: sha256 {'22' * 8}…, 5 bytes → not there"
    assert lines[3] == "exit code: 0 → 3"
    assert (
        f"library: {a.before.mpi.file}: of the host, sha256 4545454545454545… → of the host, sha256 5454545454545454…"
        in lines
    )
    shuffled = random.Random(SEED).sample(found, len(found))
    assert [d.kind for d in compare.ordered(shuffled)] == [d.kind for d in found]


def test_many_differences_of_a_kind_are_counted() -> None:
    record = run_record()
    more = tuple(Library(f"/lib{i}.so", "image") for i in range(30))
    other = replace(record, ranks=replace(record.ranks, libraries=(*record.ranks.libraries, *more)))
    lines = list(compare.lines(compare.differences(record, other)))
    assert len(lines) == 9 and lines[-1] == "library: 22 more"
