"""Runs that take their input from an object store and write their results there, on one node and on two."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.object_stores import GUEST, OWNER, LoopbackStore, cloud, faulty, swift
from tests.system import hosts, slurm
from tests.system.hosts import answer, fairlead
from tests.system.netns import ADDRESSES, Host, launcher, two_hosts

from fairlead.base import data_list

WORK = """
import os, zlib
from mpi4py import MPI
rank, stage = MPI.COMM_WORLD.rank, os.environ["FAIRLEAD_STAGE"]
os.makedirs(f"{stage}/out/deep", exist_ok=True)
with open(f"{stage}/set/large", "rb") as source, open(f"{stage}/out/deep/{rank}", "w") as out:
    out.write(str(zlib.crc32(source.read())))
MPI.COMM_WORLD.Barrier()
"""
LARGE = os.urandom(20 << 20)


@pytest.fixture(scope="module")
def store() -> Iterator[LoopbackStore]:
    with swift() as running:
        running.make_bucket("data")
        running.put("data", {"set/large": LARGE, "set/deep/small": b"small"})
        yield running


def run(store: LoopbackStore, *words: str | Path, key: str = "", secret: str = ""):
    environ = store.environ(key, secret) | {"FAIRLEAD_OBJECT_WAIT": "5"}
    return fairlead("run", "--json", *words, env=environ)


def work(*options: str | Path) -> tuple[str | Path, ...]:
    return ("-n", "2", *options, hosts.image(), "--", "python3", "-c", WORK)


@pytest.mark.full  # the emulators are installed
@pytest.mark.parametrize("scheme", ["abfs", "gs"])
def test_run_reads_another_cloud_within_its_bandwidth_and_writes_there(scheme, tmp_path) -> None:
    (tmp_path / "set/deep").mkdir(parents=True)
    (tmp_path / "set/large").write_bytes(LARGE)
    (tmp_path / "set/deep/small").write_bytes(b"small")
    rate = 5_000_000
    with cloud(scheme) as environ:
        place = f"{scheme}://lab/set"
        up = fairlead("data", "sync", tmp_path / "set", place, env=environ)
        assert up.returncode == 0, up.stderr
        listed = fairlead("data", "describe", "--write", place, env=environ)
        assert listed.returncode == 0, listed.stderr
        done = fairlead(
            "run", "--json", "--stage-to", tmp_path, "--stage-bandwidth", f"{rate}",
            *work("--stage-in", place, "--stage-out", f"out:{scheme}://lab/results"), env=environ,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        (came,), (went,) = answer(done)["stage"]["in"], answer(done)["stage"]["out"]
        assert came["files"] == 3 and came["data"] >= len(LARGE)
        assert came["copy_s"] + came["verify_s"] >= len(LARGE) / rate - 0.2, "a limit, not a speed"
        back = fairlead("data", "sync", f"{scheme}://lab/results", tmp_path / "back", env=environ)
        assert back.returncode == 0, back.stderr
        gone = fairlead("run", "--json", "--stage-in", f"{scheme}://gone/set", *work(), env=environ)
        assert gone.returncode == 2, gone.stdout
        assert [f["check"] for f in answer(gone)["findings"]] == ["object-missing"]
    for n in range(2):
        assert (tmp_path / f"back/deep/{n}").read_text() == str(zlib.crc32(LARGE))
    assert went["target"] == f"{scheme}://lab/results"


def test_run_reads_a_bucket_and_writes_its_results_to_it(store, tmp_path) -> None:
    done = run(
        store, "--record", tmp_path / "record", "--stage-to", tmp_path,
        *work("--stage-in", "s3://data/set", "--stage-out", "out:s3://data/results/one"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = answer(done)["stage"]
    (came,), (went,) = said["in"], said["out"]
    assert came["bytes"] == came["data"] == len(LARGE) + 5 and came["files"] == 2
    assert came["source"] == "s3://data/set" and went["target"] == "s3://data/results/one"
    want = str(zlib.crc32(LARGE)).encode()
    assert [store.get("data", f"results/one/deep/{n}") for n in range(2)] == [want] * 2
    files = data_list.parsed(store.get("data", "results/one/data.json"), "list")
    assert set(files) == {"deep/0", "deep/1"}
    assert data_list.set_digest((f.name, f.sha256) for f in files.values()) == went["digest"]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("fairlead-")]
    for file in [p for p in tmp_path.rglob("*") if p.is_file()]:
        assert OWNER[1].encode() not in file.read_bytes(), file
    assert OWNER[1] not in done.stdout + done.stderr


def test_staged_files_stay_for_later_runs_when_a_limit_is_given(store, tmp_path) -> None:
    words = ("--stage-to", tmp_path, "--stage-cache", "1GB", "--stage-in", "s3://data/set")
    for reused in (False, True):
        done = run(store, "-n", "1", *words, hosts.image(), "--", "true")
        assert done.returncode == 0, done.stdout + done.stderr
        (came,) = answer(done)["stage"]["in"]
        assert came["reused"] is reused, came


@pytest.mark.parametrize(
    ("options", "user", "code", "check"),
    [
        (("--stage-in", "s3://no-such-bucket/x"), OWNER, 2, "object-missing"),
        (("--stage-in", "s3://data/no-such"), OWNER, 2, "object-missing"),
        (("--stage-in", "s3://data/set"), GUEST, 2, "object-denied"),
        (("--stage-in", "s3://data/set"), ("lab:owner", "no"), 2, "object-credential"),
        (("--stage-in", "s4://data/set"), OWNER, 2, "object-url"),
        (("--stage-in", "s3://key:word@data/set"), OWNER, 2, "object-url"),
        (("--stage-in", "http://h/x?X-Amz-Signature=0"), OWNER, 2, "object-url"),
        (("--stage-out", "out:s3://data/set"), OWNER, 2, "object-exists"),
        (("--stage-out", "out:s3://data/new"), GUEST, 2, "object-denied"),
    ],
)
def test_what_is_wrong_is_one_message_before_ranks_start(
    options, user, code, check, store, tmp_path
) -> None:
    mark = tmp_path / "launched"
    done = run(
        store, "--bind", tmp_path, *options, hosts.image(), "--", "touch", mark,
        key=user[0], secret=user[1],
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == check and finding["remedy"] and not mark.exists()
    for secret in (OWNER[1], GUEST[1], "word"):
        assert secret not in finding["where"] + finding["why"]


def test_names_that_are_no_paths_and_full_storage_stop_before_ranks_start(store, tmp_path) -> None:
    store.put("data", {"odd/a": b"1", "odd/a/b": b"2"})
    done = run(store, "--stage-in", "s3://data/odd", hosts.image(), "--", "true")
    assert done.returncode == 121, done.stdout + done.stderr
    assert [f["check"] for f in answer(done)["findings"]] == ["object-names"]
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", small], check=True)
    try:
        done = run(
            store, "--stage-to", small, "--stage-in", "s3://data/set", hosts.image(), "--", "true"
        )
        assert done.returncode == 121, done.stdout + done.stderr
        assert [f["check"] for f in answer(done)["findings"]] == ["stage-room"]
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_object_that_changes_while_it_is_staged_stops_the_run(store, tmp_path) -> None:
    store.put("data", {"moving/large": LARGE})
    mark = tmp_path / "launched"
    with faulty(store) as (through, faults):

        def changing(method: str, path: str, number: int) -> str:
            if "/moving/large bytes=0-" in path:
                store.put("data", {"moving/large": LARGE[::-1]})
            return ""

        faults.fault = changing
        done = run(
            through, "--stage-to", tmp_path, "--stage-in", "s3://data/moving", "--bind", tmp_path,
            hosts.image(), "--", "touch", mark,
        )  # fmt: skip
    assert done.returncode == 123, done.stdout + done.stderr
    assert [f["check"] for f in answer(done)["findings"]] == ["object-changed"]
    assert not mark.exists() and not list(tmp_path.glob("fairlead-stage.*"))


def test_results_that_cannot_be_written_stay_and_are_fetched_by_the_printed_line(
    store, tmp_path
) -> None:
    with faulty(store) as (through, faults):
        faults.fault = lambda method, path, number: (
            "503" if method == "PUT" and "/deep/" in path else ""
        )
        done = run(
            through, "--stage-to", tmp_path,
            *work("--stage-in", "s3://data/set", "--stage-out", "out:s3://data/late"),
        )  # fmt: skip
        assert done.returncode == 123, done.stdout + done.stderr
        (finding,) = answer(done)["stage"]["findings"]
        assert finding["check"] == "stage-out"
        faults.fault = lambda method, path, number: ""
        refused = run(through, "--stage-in", "s3://data/late", hosts.image(), "--", "true")
        assert [f["check"] for f in answer(refused)["findings"]] == ["object-incomplete"]
        line = finding["remedy"].partition(": ")[2]
        subprocess.run(line, shell=True, check=True, env=through.environ(), timeout=60)
    assert store.get("data", "late/deep/0") == str(zlib.crc32(LARGE)).encode()


def test_job_script_and_dry_run_have_no_secret(store) -> None:
    words = ("--stage-in", "s3://data/set", "--stage-out", "out:s3://data/never")
    environ = store.environ()
    script = fairlead(
        "script", "--scheduler", "slurm", "-n", "2", *words, hosts.image(), "--", "true", env=environ
    )  # fmt: skip
    assert script.returncode == 0, script.stderr
    line = fairlead("run", "--dry-run", "-n", "2", *words, hosts.image(), "--", "true", env=environ)
    assert line.returncode == 0, line.stderr
    for text in (script.stdout, line.stdout):
        assert "s3://data/set" in text and OWNER[1] not in text and OWNER[0] not in text


# --- mounts ------------------------------------------------------------------------------------------

READ = "import os, sys, zlib; print(sorted(os.listdir('/data')), zlib.crc32(open('/data/large', 'rb').read()))"


def left_mounted() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if "fairlead-mount." in line]


def test_bucket_is_a_read_only_folder_in_the_container(store, tmp_path) -> None:
    done = run(
        store, "-n", "2", "--stage-to", tmp_path, "--mount", "s3://data/set:/data",
        hosts.image(), "--", "python3", "-c",
        READ + "\ntry:\n    open('/data/new', 'w')\nexcept OSError as exc:\n    print(exc)",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count(f"['deep', 'large'] {zlib.crc32(LARGE)}") == 2
    assert "Read-only file system" in done.stderr
    assert left_mounted() == [] and list(tmp_path.iterdir()) == []
    assert OWNER[1] not in done.stdout + done.stderr


def test_secret_of_a_mount_is_on_no_command_line_and_in_no_file(store, tmp_path) -> None:
    look = (
        "import glob, os\nfor p in glob.glob('/proc/[0-9]*/cmdline'):\n    try: text = open(p).read()\n"
        "    except OSError: continue\n    print('LINE', text.replace(chr(0), ' '))"
    )
    done = run(
        store, "--stage-to", tmp_path, "--mount", "s3://data/set:/data", "--bind", tmp_path,
        hosts.image(), "--", "python3", "-c",
        look + f"\nfor d, _, fs in os.walk('{tmp_path}'):\n    for f in fs:\n        print('FILE', open(d + '/' + f, 'rb').read()[:10000])",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "LINE rclone mount" in done.stderr and "FILE" in done.stderr
    assert OWNER[1] not in done.stderr and OWNER[0] not in done.stderr


def test_squashfs_image_is_mounted_next_to_the_program(store, tmp_path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "large").write_bytes(LARGE)
    image = tmp_path / "data.squashfs"
    packed = fairlead("data", "pack", "--format", "squashfs", tmp_path / "files", image)
    assert packed.returncode == 0, packed.stderr
    done = run(
        store, "--stage-to", tmp_path, "--mount", f"{image}:/data", hosts.image(), "--",
        "python3", "-c", READ,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"['data.json', 'large'] {zlib.crc32(LARGE)}" in done.stderr
    assert left_mounted() == []


def test_mount_goes_when_fairlead_is_killed(store, tmp_path) -> None:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "fairlead", "run", "--stage-to", tmp_path,
            "--mount", "s3://data/set:/data", hosts.image(), "--",
            "python3", "-c", "import time; print('at work', flush=True); time.sleep(100)",
        ],
        env=store.environ(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout and "at work" in process.stdout.readline()
    assert left_mounted()
    process.kill()
    process.wait(20)
    deadline = time.monotonic() + 20
    while left_mounted() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_mounted() == []


@pytest.mark.parametrize(
    ("words", "code", "check"),
    [
        (("--mount", "s3://data/nothing:/data"), 2, "object-missing"),
        (("--mount", "https://h/x:/data"), 2, "mount"),
        (("--mount", "/no/such.squashfs:/data"), 2, "mount"),
        (("--mount", "s3://data/set"), 2, "usage"),
    ],
)
def test_what_cannot_be_mounted_is_one_message(words, code, check, store) -> None:
    done = run(store, *words, hosts.image(), "--", "true")
    assert done.returncode == code, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == check and finding["remedy"]


# --- two hosts -----------------------------------------------------------------------------------

on_two_hosts = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces")


@pytest.mark.full
@on_two_hosts
def test_each_node_brings_the_versions_that_were_there_at_the_start(tmp_path) -> None:
    with swift(tmp_path / "kept") as here:
        here.make_bucket("data")
        here.put("data", {"set/large": LARGE, "set/deep/small": b"small"})
    with (
        two_hosts() as (one, two),
        swift(tmp_path / "kept", ADDRESSES["node1"], one.words()) as there,
    ):
        before = one.memory() | two.memory()
        environ = there.environ()
        done = one.fairlead(
            "run", "-n", "2", "--json", "--launcher",
            launcher(one, hosts.mpich() / "bin/mpiexec.hydra"), "--stage-to", "memory",
            "--stage-in", "s3://data/set", "--stage-out", "out:s3://data/results",
            hosts.image(), "--", "python3", "-c", WORK, env=environ,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        said = answer(done)["stage"]
        assert sorted(item["node"] for item in said["in"]) == ["node1", "node2"]
        assert {item["digest"] for item in said["in"]} == {said["in"][0]["digest"]}
        assert one.memory() | two.memory() == before
    with swift(tmp_path / "kept") as here:
        keys = set(here.keys("data", "results/"))
    assert {"results/node1/deep/0", "results/node2/deep/1"} <= keys


READ_ON = f"import os; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); {READ}; print(os.uname().nodename, flush=True)"


def mounted_on(host: Host) -> list[str]:
    return [line for line in host.mounts() if "fairlead-mount." in line]


@pytest.fixture
def mounting(tmp_path) -> Iterator[tuple[Host, Host, dict[str, str], tuple[str | Path, ...]]]:
    """Two hosts, and the words of a run with a rank on each that mounts a packed image at /data."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "large").write_bytes(LARGE)
    image = tmp_path / "data.squashfs"
    packed = fairlead("data", "pack", "--format", "squashfs", tmp_path / "files", image)
    assert packed.returncode == 0, packed.stderr
    with two_hosts() as (one, two):
        before = one.memory() | two.memory()
        words = (
            "run", "-n", "2", "--json", "--launcher",
            launcher(one, hosts.mpich() / "bin/mpiexec.hydra"), "--mount", f"{image}:/data",
        )  # fmt: skip
        yield one, two, dict(os.environ), words
        slurm.waited(lambda: not mounted_on(one) + mounted_on(two), 45, "mounts are left")
        assert {n for n in one.memory() | two.memory() if "fairlead-mount." in n} <= before


@on_two_hosts
def test_every_node_mounts_what_its_ranks_read(mounting) -> None:
    one, two, environ, words = mounting
    for attempt in range(2):
        done = one.fairlead(
            *words,
            "--stage-to",
            "memory",
            hosts.image(),
            "--",
            "python3",
            "-c",
            READ_ON,
            env=environ,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr.count(f"['data.json', 'large'] {zlib.crc32(LARGE)}") == 2, attempt
        assert {"node1", "node2"} <= set(done.stderr.split())
        assert mounted_on(one) + mounted_on(two) == []  # when fairlead ends, not a moment later


@on_two_hosts
def test_node_that_cannot_mount_is_named_before_its_ranks_start(mounting) -> None:
    one, two, environ, words = mounting
    program = shutil.which("squashfuse_ll")
    assert program
    subprocess.run(
        two.words("mount", "--bind", "/dev/null", program), check=True
    )  # ends with node2
    done = one.fairlead(
        *words, "--stage-to", "memory", hosts.image(), "--", "python3", "-c", "print('STARTED')", env=environ
    )  # fmt: skip
    assert done.returncode == 123, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "mount" and "node2" in finding["what"]
    assert "squashfuse_ll is missing" in finding["why"]
    assert "STARTED" not in done.stderr


@on_two_hosts
def test_storage_that_nodes_share_cannot_hold_their_mounts(mounting, tmp_path) -> None:
    one, _, environ, words = mounting
    done = one.fairlead(*words, "--stage-to", tmp_path, hosts.image(), "--", "true", env=environ)
    assert done.returncode == 123, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "mount" and "share" in finding["why"]
    assert not list(tmp_path.glob("fairlead-mount.*"))


@on_two_hosts
def test_mounts_of_other_nodes_go_when_fairlead_is_killed(mounting) -> None:
    one, two, environ, words = mounting
    code = f"{READ_ON}\nimport time; time.sleep(100)"
    run = subprocess.Popen(
        one.words(
            sys.executable, "-m", "fairlead", *words, "--stage-to", "memory", hosts.image(), "--",
            "python3", "-c", code,
        ),
        env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert run.stderr
    for line in run.stderr:
        if line.strip() == "node2":
            break
    assert mounted_on(one) and mounted_on(two)
    (process,) = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(process), signal.SIGKILL)
    run.communicate()
    slurm.waited(lambda: not mounted_on(one) + mounted_on(two), 45, "mounts are left")
    slurm.waited(
        lambda: not any("fairlead-mount." in n for n in two.memory()), 5, "a folder is left"
    )
    here = one.fairlead("run", *words[-2:], "--stage-to", "memory", hosts.image(), "--", "true")
    assert here.returncode == 0, here.stderr  # and it removes what the killed run has left here
    for path in Path(f"/proc/{one.init}/root/dev/shm").iterdir():
        if path.name.startswith(("mpich_shm_", "ucx_shm_")):
            path.unlink()


@on_two_hosts
def test_slurms_nodes_mount_a_bucket_and_leave_nothing(store) -> None:
    with slurm.slurm() as cluster, cluster.in_use():
        done = replace(cluster, environ=cluster.environ | store.variables()).fairlead(
            "run", "-N", "2", "-n", "4", "--json", "--mpi", hosts.mpich(), "--stage-to", "memory",
            "--mount", "s3://data/set:/data", hosts.image(), "--", "python3", "-c", READ_ON,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr.count(f"['deep', 'large'] {zlib.crc32(LARGE)}") == 4
        assert OWNER[1] not in done.stdout + done.stderr
        assert not left_on(cluster)


def left_on(cluster: slurm.Cluster) -> list[str]:
    return [
        node for node, process in cluster.nodes.items()
        if "fairlead-mount." in Path(f"/proc/{process.pid}/mounts").read_text()
    ]  # fmt: skip


@on_two_hosts
def test_restart_on_a_spare_node_finds_its_data_and_leaves_no_mount_nor_does_a_run_within_a_step(
    mounting, tmp_path
) -> None:
    image = mounting[3][-1]
    code = f"{READ_ON}; import sys; os.stat(os.environ['FAIRLEAD_STAGE'] + '/data.squashfs'); sys.exit(3 * (os.uname().nodename == 'n2' and os.environ['FAIRLEAD_RESTART'] == '0'))"
    with slurm.slurm() as cluster, cluster.in_use():
        words = (
            sys.executable, "-m", "fairlead", "run", "-N", "2", "-n", "2", "--mpi", hosts.mpich(), "--stage-to", "memory",
            "--mount", image,
        )  # fmt: skip
        again = (
            "--restarts",
            "1",
            "--spares",
            "1",
            "--exclude-failed",
            "--stage-in",
            image.partition(":")[0],
        )
        done = cluster.run(
            "salloc", "-N", "3", *words, *again, hosts.image(), "--", "python3", "-c", code
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "n3" in (done.stdout + done.stderr).split()
        assert not left_on(cluster)
        within = ("salloc", "-N", "2", "srun", "-N", "1", "-n", "1", *words, hosts.image(), "--")
        done = cluster.run(*within, "python3", "-c", READ_ON)
        assert done.returncode == 0 and "mounts of other nodes" not in done.stderr, done.stderr
        assert not left_on(cluster)


@pytest.mark.full
def test_training_on_a_bucket_is_the_training_on_its_files(store, tmp_path) -> None:
    from fairlead_build.build import build

    build("tensorflow")
    folder = tmp_path / "events"
    made = subprocess.run(
        ["python3", "-m", "fairlead.ml.data.generate", "--set", "hep", "--train", "600", "--val",
         "200", "--out", str(folder), "--per-shard", "100"],
        env=hosts.READER, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    store.put("data", {f"events/{p.name}": p.read_bytes() for p in folder.iterdir()})
    finals = []
    for data in (str(folder), "s3://data/events"):
        out = tmp_path / f"report-{len(finals)}"
        to = ("--stage-to", str(tmp_path)) if data.startswith("s3") else ()
        done = fairlead(
            "train", "hepcnn", "-n", "2", "--data", data, *to, "-o", out, "--epochs", "1",
            "--max-seconds", "60", env=store.environ(), limit_s=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        training = json.loads((out / "report.json").read_text())["training"]
        finals.append([weights["final"] for weights in training["all"]["weights"]])
    assert finals[0] == finals[1]
    assert not list(tmp_path.glob("fairlead-*"))
