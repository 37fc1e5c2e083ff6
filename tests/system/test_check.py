"""Two builds are compared: equal on a disturbed machine, and a difference is named."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.system import hosts
from tests.system.test_build import copy_downloads

from fairlead_build.build import build
from fairlead_build.cache.store import Cache
from fairlead_build.check import first_difference
from fairlead_build.squashfs.squash import Compression, squashing
from fairlead_build.tools import tool_tree

HOW = Compression("zstd", 3, 1_700_000_000)


def squashfs(target: Path, **changes: object) -> Path:
    """A small image; ``changes`` are attributes of its second file, or its ``body``."""
    with squashing(target, HOW, "fairlead build") as sink:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for number in range(3):
                info = tarfile.TarInfo(f"./usr/file{number}")
                info.mode, info.mtime = 0o644, 1_700_000_000
                body = b"0123456789" * 1000
                if number == 1:
                    body = bytes(changes.get("body", body))  # type: ignore[call-overload]
                    for key in changes.keys() - {"body"}:
                        setattr(info, key, changes[key])
                info.size = len(body)
                archive.addfile(info, io.BytesIO(body))
        sink.write(buffer.getvalue())
    return target


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mode": 0o755}, "/usr/file1: mode 644 and 755"),
        (
            {"mtime": 1_700_000_001},
            "/usr/file1: time 2023-11-14 22:13:20Z and 2023-11-14 22:13:21Z",
        ),
        ({"uid": 7}, "/usr/file1: owner 0:0 and 7:0"),
        ({"name": "./usr/file1b"}, "/usr/file1: the second build has /usr/file1b in its place"),
        (
            {"body": b"0123456789" * 999 + b"012345678!"},
            "/usr/file1: content from byte 9999 on: 39 and 21",
        ),
        ({"body": b"0123456789" * 999}, "/usr/file1: content from byte 9990 on: "),
    ],
)
def test_difference_names_file_and_reason(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    one, two = squashfs(tmp_path / "one"), squashfs(tmp_path / "two", **changes)
    assert first_difference(one, two).startswith(said)
    assert first_difference(one, one) == ""


@pytest.mark.full
def test_build_check_by_another_user_finds_the_same_bits() -> None:
    argv = [sys.executable, "-m", "fairlead", "build", "mpi-base", "--check", "--json"]
    argv += ["--format", "sif,squashfs"]
    with hosts.account("check"):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    output = json.loads(done.stdout)["check"]
    assert output["same"] and output["difference"] == ""
    # By that account, or by one that an ended run of these tests has left. It may not read what lies in
    # root's own home: then root does it again, and says so.
    another = output["user"].startswith("fairlead-") and not output["left_out"]
    assert another or ("fairlead-" in output["left_out"] and "may not read" in output["left_out"])
    assert [c["what"] for c in output["compared"]] == ["sif", "squashfs"]


@pytest.mark.full
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    umask=st.sampled_from([0o000, 0o002, 0o027, 0o077]),
    zone=st.sampled_from(["UTC", "Asia/Kathmandu", "Pacific/Apia", "nonsense"]),
    locale=st.sampled_from(["C", "POSIX", "tr_TR.UTF-8", "nonsense"]),
    hostname=st.from_regex(r"[a-z][a-z0-9-]{0,20}[a-z0-9]", fullmatch=True),
    cores=st.sets(st.sampled_from(sorted(os.sched_getaffinity(0))), min_size=1),
    seed=st.integers(0, 2**32 - 1),
    folder=st.sampled_from(["/", "/tmp", "/proc"]),
    closed=st.booleans(),
)
def test_build_disturbed_gives_the_same_bytes(
    umask: int,
    zone: str,
    locale: str,
    hostname: str,
    cores: set[int],
    seed: int,
    folder: str,
    closed: bool,
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can rename the machine for a process")
    first = build("mpi-base").entry
    tool_tree.unpacked(Cache.default())
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        own = Cache(root / "cache" / "fairlead")
        own.make()
        copy_downloads("mpi-base", own.root)
        (root / "cache").chmod(0o700 if closed else 0o755)
        script = f'umask {umask:o}; hostname {hostname}; cd {folder}; exec "$@"'
        argv = ["unshare", "--uts", "sh", "-c", script, "sh"]
        argv += ["taskset", "--cpu-list", ",".join(map(str, sorted(cores)))]
        argv += [sys.executable, "-P", "-m", "fairlead", "build", "mpi-base", "--json"]
        env = {
            **os.environ,
            "TZ": zone,
            "LC_ALL": locale,
            "PYTHONHASHSEED": str(seed),
            "TMPDIR": str(root),
            "XDG_CACHE_HOME": str(root / "cache"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        image = json.loads(done.stdout)["image"]
    assert first is not None
    assert image["squashfs_sha256"] == first.squashfs_sha256
    assert image["sif_sha256"] == first.sif_sha256
