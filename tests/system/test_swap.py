"""The swap on real MPIs: what runs is the host's, on every rank, and it computes the same."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import answer, fairlead, ranks_of

from fairlead_build.cache.store import scratch_parent

REPORT = """
from mpi4py import MPI
import numpy as np
world = MPI.COMM_WORLD
given = np.arange(100_003, dtype=np.float64) / 7 * (world.rank + 1) + 1e-9
summed = np.empty_like(given)
world.Allreduce(given, summed)
import hashlib
bits = hashlib.sha256(summed.tobytes()).hexdigest()
print(f"rank {world.rank} of {world.size}: {MPI.Get_library_version().split(chr(10))[0]}: {bits}\\n", end="")
"""


@pytest.fixture(scope="module")
def programs() -> Path:
    """mpi-base with a C program in it, as a bare squashfs."""
    return hosts.image_with_programs()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Path]:
    """A root file system in a folder, that fairlead did not make: a smaller mpi-base."""
    away = (
        ".fairlead",
        "opt/python/lib/python3.11/site-packages/numpy*",
        "usr/bin/perl*",
        "opt/python/lib/python3.11/site-packages/[a-l]*",
        "usr/lib/x86_64-linux-gnu/perl*",
        "opt/python/lib/python3.11/site-packages/p*",
        "usr/share/*",
    )
    with tempfile.TemporaryDirectory(dir=scratch_parent(400 << 20)) as folder:
        yield hosts.unpacked(Path(folder, "tree"), {}, away)


@pytest.mark.parametrize(
    ("host", "title"),
    [(hosts.mpich, "MPICH Version: 5.0.2"), (hosts.intel, "Intel(R) MPI Library 2021.18.1")],
)
def test_swap_python_reports_host_and_computes_as_the_image(host, title, programs) -> None:
    command = (hosts.image(), "--", "python3", "-c", REPORT)
    swapped = fairlead("run", "-n", "2", "--mpi", host(), *command)
    own = fairlead("run", "-n", "2", "--mpi", "container", *command)
    assert (swapped.returncode, own.returncode) == (0, 0), swapped.stderr + own.stderr
    seen, kept = ranks_of(swapped.stdout), ranks_of(own.stdout)
    assert set(seen) == set(kept) == {0, 1}
    assert all(version.startswith(title) for version, _ in seen.values()), seen
    assert all(version == "MPICH Version: 3.4.3" for version, _ in kept.values()), kept
    assert {bits for _, bits in (*seen.values(), *kept.values())} == {seen[0][1]}


def test_swap_c_program_same_bits_on_three_mpis(programs) -> None:
    results = {}
    for title, mpi in (
        ("MPICH Version: 5.0.2", hosts.mpich()),
        ("Intel(R) MPI Library 2021.18.1", hosts.intel()),
        ("MPICH Version: 3.4.3", "container"),
    ):
        done = fairlead("run", "-n", "2", "--mpi", mpi, programs, "--", "/opt/app/allreduce")
        assert done.returncode == 0, done.stderr
        seen = ranks_of(done.stdout)
        assert set(seen) == {0, 1}
        assert all(version.startswith(title) for version, _ in seen.values()), seen
        results[title] = {bits for _, bits in seen.values()}
    assert set().union(*results.values()) == results["MPICH Version: 3.4.3"]
    assert len(results["MPICH Version: 3.4.3"].pop().split()) == 4


def test_swap_json_holds_plan_proof_and_every_rank() -> None:
    done = fairlead("run", "-n", "2", "--json", hosts.image(), "--", "python3", "-c", REPORT)
    assert done.returncode == 0, done.stderr
    said = answer(done)
    assert (said["schema"], said["version"], said["exit_code"]) == ("fairlead/run", 1, 0)
    assert sorted((r["rank"], r["exit_code"]) for r in said["ranks"]) == [("0", 0), ("1", 0)]
    proof = said["proof"]
    assert proof["holds"] and proof["asked"] == 2 and proof["findings"] == []
    for rank in proof["ranks"]:
        assert rank["size"] == 2 and rank["mpi_count"] == 1 and rank["ring_ok"]
        assert rank["mpi_path"] == said["mpi"]["file"] == "/opt/fairlead/mpi/lib/libmpi.so.12"
        assert rank["mpi_inode"] == proof["planned_inode"] > 0
    assert set(ranks_of(done.stderr)) == {0, 1}  # the ranks' own words


def test_swap_line_of_a_dry_run_runs_when_pasted() -> None:
    done = fairlead("run", "-n", "2", "--dry-run", hosts.image(), "--", "python3", "-c", REPORT)
    assert done.returncode == 0, done.stderr
    pasted = subprocess.run(["sh", "-c", done.stdout], capture_output=True, text=True, check=False)
    assert pasted.returncode == 0, pasted.stderr
    assert {v for v, _ in ranks_of(pasted.stdout).values()} == {"MPICH Version: 5.0.2"}


def test_swap_debian_mpich_alias_makes_it_work() -> None:
    image = hosts.image_with_debian_mpich()
    prepared = answer(fairlead("preflight", "--json", image, "--app", "/opt/app/allreduce"))
    assert prepared["refused"] is False
    assert "libmpich.so.12" in prepared["mpi"]["names"]
    assert ["lib/libmpich.so.12", "libmpi.so.12"] in prepared["staging"]["aliases"]
    done = fairlead("run", "-n", "2", image, "--", "/opt/app/allreduce")
    assert done.returncode == 0, done.stderr
    assert {v for v, _ in ranks_of(done.stdout).values()} == {"MPICH Version: 5.0.2"}


def test_foreign_squashfs_is_looked_into_and_runs(programs) -> None:
    said = answer(fairlead("inspect", "--json", programs))["image"]
    assert said["format"] == "squashfs" and said["looked"] is True
    assert [m["elf"]["path"] for m in said["facts"]["mpis"]] == ["/opt/mpich/lib/libmpi.so.12"]
    assert "/opt/app/allreduce" in [e["path"] for e in said["facts"]["consumers"]]
    done = fairlead("run", "-n", "2", programs, "--", "/opt/app/allreduce")
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_foreign_sandbox_and_sif_of_apptainer_are_looked_into_and_run(
    sandbox: Path, tmp_path: Path
) -> None:
    sif = tmp_path / "foreign.sif"
    tools = hosts.debian_files("bookworm", "squashfs-tools", "liblzo2-2", "liblz4-1") / "usr"
    environ = {
        **os.environ,
        "PATH": f"{tools / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(tools / "lib/x86_64-linux-gnu"),
        "APPTAINER_CACHEDIR": str(tmp_path),
    }
    fast = "-comp zstd -Xcompression-level 1"
    made = subprocess.run(
        [hosts.apptainer(), "build", "--mksquashfs-args", fast, sif, sandbox],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    shown = {}
    for name, image in (("sandbox", sandbox), ("sif", sif)):
        said = answer(fairlead("inspect", "--json", image))["image"]
        assert said["format"] == name and said["looked"] is True and not said["record"]
        assert [m["vendor"] + m["version"] for m in said["facts"]["mpis"]] == ["MPICH3.4.3"]
        shown[name] = said["facts"]
        done = fairlead(
            "run",
            "-n",
            "2",
            image,
            "--",
            "python3",
            "-c",
            "from mpi4py import MPI; print(MPI.Get_library_version())",
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("MPICH Version:      5.0.2") == 2
    # Apptainer's build adds its own scripts and links to them.
    for facts in shown.values():
        facts["programs"] = {
            path: kind
            for path, kind in facts["programs"].items()
            if not any(".singularity.d/" in text for text in (path, kind))
        }
    assert shown["sandbox"] == shown["sif"]


def test_line_of_a_rank_arrives_while_it_still_runs(tmp_path: Path) -> None:
    """The rank ends only once the test has read its line."""
    script, go_on = tmp_path / "script.py", tmp_path / "go on"
    script.write_text(f"""
import os, sys, time
print("first", os.environ.get("PYTHONHASHSEED"), os.environ.get("PYTHONSTARTUP"), sys.stdout.isatty())
while not os.path.exists({str(go_on)!r}):
    time.sleep(0.1)
print("last")
""")
    line = [
        sys.executable,
        "-m",
        "fairlead",
        "run",
        "-B",
        tmp_path,
        hosts.image(),
        "--",
        "python3",
        script,
    ]
    environ = {
        **hosts.READER,
        "PYTHONHASHSEED": "7",
        "PYTHONSTARTUP": "/x",
        "PYTHONPATH": str(hosts.ROOT / "runtime"),
    }
    with subprocess.Popen(
        list(map(str, line)), stdout=subprocess.PIPE, text=True, env=environ
    ) as run:
        assert run.stdout is not None
        try:
            assert run.stdout.readline() == "first 7 None False\n"
        finally:
            go_on.touch()
        assert run.stdout.read() == "last\n"
    assert run.returncode == 0
