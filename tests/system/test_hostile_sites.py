"""Profiles, captures and images that somebody else has made: asked about, nothing of theirs is executed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts
from tests.system.hosts import fairlead

from fairlead.image.open import open_image
from fairlead_build.formats.sif import write_sif

ASKED = ("preflight", "explain")
PROFILE = """
[site]
name = "theirs"
summary = "$(touch FOLDER/ran) `touch FOLDER/ran` \\u001b[2J\\u202e"
extends = "laptop"
notes = ["\\u001b]0;x\\u0007"]

[sources.me]
text = "me"
status = "documented"
read = 2026-01-01

[mpi]
source = "me"
search = ["FOLDER/prefix"]

[binds]
source = "me"
paths = ["/etc/shadow", "FOLDER/private"]

[environment]
source = "me"
set = { BASH_ENV = "FOLDER/rc", THEIRS = "$(touch FOLDER/ran)" }

[launcher]
source = "me"
kinds = ["mpiexec"]
options = { mpiexec = ["-launcher-exec", "FOLDER/start"] }

[engine]
source = "me"
options = { apptainer = ["--bind", "/etc:/theirs"] }
"""


def trap(path: Path, ran: Path, rest: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n# HYDRA build details\necho $0 $* >>{ran}\n{rest}\n")
    path.chmod(0o755)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile with an MPI of its own, whose every program would leave a trace."""
    prefix = tmp_path / "prefix"
    shutil.copytree(hosts.mpich(), prefix, symlinks=True)
    for program in (prefix / "bin").iterdir():
        trap(program, tmp_path / "ran")
    trap(tmp_path / "start", tmp_path / "ran")
    (tmp_path / "rc").write_text(f"touch {tmp_path}/ran\n")
    (tmp_path / "private").mkdir(mode=0o700)
    file = tmp_path / "theirs.toml"
    file.write_text(PROFILE.replace("FOLDER", str(tmp_path)))
    if os.geteuid() == 0:
        for path in (prefix, *prefix.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
    else:
        (prefix / "bin").chmod(0o777)  # as good as theirs
    return file


def test_profile_is_asked_and_shown_and_nothing_of_it_runs(profile: Path) -> None:
    image = str(hosts.image("mpi-base"))
    for words in (
        ("site", "show", str(profile)),
        *((verb, "--site", str(profile), image) for verb in ASKED),
        ("run", "--dry-run", "--site", str(profile), image, "--", "true"),
    ):
        done = fairlead(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert not (profile.parent / "ran").exists(), words
        assert "\x1b" not in done.stdout + done.stderr, words
        assert "\u202e" not in done.stdout + done.stderr, words
    shown = json.loads(fairlead("preflight", "--json", "--site", str(profile), image).stdout)
    [found] = [f for f in shown["findings"] if f["check"] == "site-strange"]
    for part in ("/etc/shadow", "private", "BASH_ENV", "/etc:/theirs"):
        assert part in found["what"], part


def test_run_says_what_a_strange_profile_adds_before_it_starts_anything(
    profile: Path, tmp_path: Path
) -> None:
    text = profile.read_text()
    start, end = text.index("[launcher]"), text.index("[engine]")
    text = text[:start] + text[end:]
    profile.write_text(text.replace(f"{tmp_path}/prefix", str(hosts.mpich())))
    done = fairlead("run", "--site", str(profile), str(hosts.image("mpi-base")), "--", "echo", "on")
    said = done.stderr.split("fairlead: profile theirs", 1)[1].splitlines()[0]
    assert "/etc/shadow" in said and "private" in said and "/etc:/theirs" in said


def test_installed_profile_is_not_strange(profile: Path, tmp_path: Path) -> None:
    home = tmp_path / "config"
    (home / "fairlead/sites").mkdir(parents=True)
    shutil.copy(profile, home / "fairlead/sites/theirs.toml")
    environ = {"XDG_CONFIG_HOME": str(home)}
    image = str(hosts.image("mpi-base"))
    done = fairlead("preflight", "--json", "--site", "theirs", image, env=environ)
    assert not [f for f in json.loads(done.stdout)["findings"] if f["check"] == "site-strange"]


def _climbed(value: Any, folder: Path) -> Any:
    """A capture whose every path leads out of where it is joined to, and to a program of theirs."""
    if isinstance(value, dict):
        return {key: _climbed(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_climbed(item, folder) for item in value]
    if isinstance(value, str) and value.startswith("/"):
        return f"/../../../..{folder}/start" if value.count("/") % 2 else f"../../..{folder}/start"
    return value


def test_capture_with_paths_that_lead_elsewhere_writes_and_starts_nothing(tmp_path: Path) -> None:
    trap(tmp_path / "start", tmp_path / "ran")
    image = str(hosts.image("mpi-base"))
    true = tmp_path / "true.json"
    assert fairlead("site", "capture", "-o", str(true)).returncode == 0
    file = tmp_path / "theirs.json"
    cache = tmp_path / "cache"
    for change in (_climbed, lambda value, folder: value):
        document = change(json.loads(true.read_text()), tmp_path)
        document |= {"node": "../../../node", "taken": "$(touch ran)"}
        file.write_text(json.dumps(document))
        before = sorted(tmp_path.glob("*"))
        for verb in ASKED:
            done = fairlead(verb, "--site", str(file), image, env={"XDG_CACHE_HOME": str(cache)})
            assert "Traceback" not in done.stderr, done.stderr
        assert sorted({*tmp_path.glob("*")} - {cache}) == [p for p in before if p != cache]
    assert not (tmp_path / "ran").exists()
    made = {path.relative_to(cache).parts[1] for path in cache.rglob("*") if path.is_file()}
    assert made <= {"facts", "locks"}, "a question stages nothing"
    refused = fairlead("run", "--site", str(file), image, "--", "true")
    assert refused.returncode != 0 and "capture" in refused.stderr


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A SIF whose scripts of the engine, shell and loader all leave a trace, wherever they run."""
    root, ran = tmp_path / "root", tmp_path / "ran"
    for name in (
        ".singularity.d/env/01-first.sh", ".singularity.d/actions/exec", ".singularity.d/runscript",
        ".singularity.d/startscript", "bin/sh", "usr/bin/python3", "usr/bin/mpichversion",
        "sbin/ldconfig", "lib64/ld-linux-x86-64.so.2",
    ):  # fmt: skip
        trap(root / name, ran)
    for name in ("etc/ld.so.preload", "etc/os-release", "var/lib/dpkg/status"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f'PRETTY_NAME="$(touch {ran})"\nID=debian\n')
    (root / "usr/lib").mkdir(parents=True)
    library = next(hosts.mpich().rglob("libmpi.so.12*")).resolve()
    shutil.copy(library, root / "usr/lib/libmpi.so.12")
    (root / "out").symlink_to("/../../../../../etc/shadow")
    (root / "bin/setuid").write_bytes(b"\x7fELF")
    (root / "bin/setuid").chmod(0o755 | stat.S_ISUID)
    squashfs = tmp_path / "x.squashfs"
    subprocess.run(
        ["mksquashfs", root, squashfs, "-noappend", "-quiet", "-all-root"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.rmtree(root)
    digest = hashlib.sha256(squashfs.read_bytes()).hexdigest()
    record = {
        "squashfs_sha256": digest,
        "env": {"LD_PRELOAD": f"{tmp_path}/x.so", "PATH": "$(touch ran)", "BASH_ENV": str(ran)},
        "recipe": "../../../x; touch ran",
        "facts": {},
    }
    path, text = tmp_path / "x.sif", json.dumps(record).encode()
    write_sif(path, squashfs, ("image.json", text), arch="amd64", epoch=1, squashfs_sha256=digest)
    return path


def test_image_is_asked_about_without_running_anything_in_it(image: Path, tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for verb in (*ASKED, "inspect"):
        done = fairlead(verb, str(image), env=environ)
        assert "Traceback" not in done.stderr, done.stderr
        assert not (tmp_path / "ran").exists() and not Path("ran").exists(), verb
    found = open_image(str(image), {**os.environ, **environ})
    assert found.looked and [mpi.names for mpi in found.facts.mpis] == [("libmpi.so.12",)]
