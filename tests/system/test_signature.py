"""Signatures over real images: who may run, what a changed byte does, and what an exchange does."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts
from tests.system.registries import registry

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.image import keys, signature
from fairlead.image.sif import DESCRIPTOR, HEADER, PAGE, read_sif
from fairlead_build.cache.store import Cache
from fairlead_build.formats.images import read_entry

PASSPHRASE = "correct horse"
SEED = 20261121


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user with a key, which this user trusts."""
    folder = tmp_path_factory.mktemp("home")
    env = {"XDG_CONFIG_HOME": str(folder), "FAIRLEAD_KEY_PASSPHRASE": PASSPHRASE}
    made = hosts.answer(hosts.fairlead("key", "new", "--json", env=env))
    assert hosts.fairlead("key", "trust", made["public"], env=env).returncode == 0
    assert made["key"] in hosts.fairlead("key", "list", env=env).stdout
    return env


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, home: dict[str, str]) -> Path:
    """mpi-base as somebody got it, in a folder of its own, signed."""
    image = tmp_path_factory.mktemp("signed") / "app.sif"
    shutil.copyfile(hosts.image(), image)
    done = hosts.fairlead("sign", image, env=home)
    assert done.returncode == 0, done.stderr
    return image


@pytest.fixture
def writable(signed: Path) -> Iterator[Path]:
    """:func:`signed`, which a test may damage; it is mended afterwards."""
    whole = signed.stat()
    yield signed
    if not signed.exists() or signed.stat().st_mtime_ns != whole.st_mtime_ns:
        shutil.copyfile(hosts.image(), signed)


def test_signed_image_is_verified_and_runs(signed: Path, home: dict[str, str]) -> None:
    said = hosts.answer(hosts.fairlead("verify", signed, "--json", env=home))
    assert said["signature"]["format"] == "sif"
    assert said["signature"]["files"][0]["size"] == signed.stat().st_size
    words = ("run", "--require-signature", "--mpi", "container", signed, "--", "echo", "here")
    done = hosts.fairlead(*words, env=home)
    assert done.returncode == 0, done.stderr
    assert f"signed with key {said['signature']['key']}" in done.stderr and done.stdout == "here\n"


@pytest.mark.parametrize("how", ["option", "variable", "site"])
def test_unsigned_image_is_refused_before_anything_starts(
    tmp_path: Path, home: dict[str, str], how: str
) -> None:
    image = tmp_path / "app.sif"
    hosts.same_file(hosts.image(), image)
    words, env = ["--force", "--mpi", "container"], dict(home)
    if how == "option":
        words += ["--require-signature"]
    elif how == "variable":
        env["FAIRLEAD_REQUIRE_SIGNATURE"] = "1"
    else:
        profile = (hosts.ROOT / "sitecfg/laptop.toml").read_text()
        (tmp_path / "strict.toml").write_text(
            profile.replace('"laptop"', '"strict"')
            + '\n[images]\nsource = "guess"\nrequire_signature = true\n'
        )
        words += ["--site", str(tmp_path / "strict.toml")]
    begun = tmp_path / "begun"
    done = hosts.fairlead("run", *words, image, "--", "touch", begun, env=env)
    assert done.returncode == ExitCode.PREFLIGHT_REFUSED, done.stderr
    assert "error[signature-missing]" in done.stderr and not begun.exists()
    done = hosts.fairlead("preflight", *words[1:], image, env=env)
    assert done.returncode == ExitCode.PREFLIGHT_REFUSED


def _places(image: Path) -> dict[str, int]:
    """Bytes of every part of a SIF: a name and an offset."""
    sif = read_sif(image)
    squashfs, record = sif.objects
    rng = random.Random(SEED)
    data = rng.randrange(squashfs.offset, squashfs.offset + squashfs.size)
    return {
        "launch line": 3,
        "magic": 33,
        "identifier": 50,
        "created": 70,
        "header's end": HEADER.size - 1,
        "padding": HEADER.size + 100,
        "table": PAGE + 20,
        "name in the table": PAGE + DESCRIPTOR.size + 80,
        "unused table": PAGE + 40 * DESCRIPTOR.size,
        "squashfs' header": squashfs.offset + 1,
        "data": data,
        "squashfs' end": squashfs.offset + squashfs.size - 1,
        "record": record.offset + 17,
        "last byte": image.stat().st_size - 1,
    }


def test_image_with_a_changed_byte_in_any_part_is_refused(
    writable: Path, home: dict[str, str]
) -> None:
    trusted = keys.trusted(home)
    signature.verify(writable, trusted)
    for part, offset in _places(writable).items():
        with writable.open("r+b") as stream:
            stream.seek(offset)
            byte = stream.read(1)[0]
            stream.seek(offset)
            stream.write(bytes([byte ^ 0x10]))
        with pytest.raises(FairleadError) as caught:
            signature.verify(writable, trusted)
        assert caught.value.findings[0].check in (
            "signature-mismatch",
            "image-digest",
            "image-format",
            "sif-damaged",
            "sif-magic",
            "sif-truncated",
            "sif-partition",
        ), part
        with writable.open("r+b") as stream:
            stream.seek(offset)
            stream.write(bytes([byte]))
    signature.verify(writable, trusted)


def during(
    words: Sequence[str | Path], folder: Path, home: dict[str, str], act: Callable[[], None]
) -> tuple[int, str]:
    """What a run ends with, and prints, that goes on while something is done."""
    begun = folder / "begun"
    script = f"touch {begun}; while [ -e {begun} ]; do sleep 0.1; done"
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "run", *words, "--", "/bin/sh", "-c", script],
        env={**os.environ, **home},
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 120
    while not begun.exists() and process.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.05)
    act()
    begun.unlink()
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def test_image_exchanged_while_it_runs_is_reported(
    writable: Path, tmp_path: Path, home: dict[str, str]
) -> None:
    def exchange() -> None:
        other = tmp_path / "other"
        shutil.copyfile(writable, other)
        other.replace(writable)

    words = ["--require-signature", "--mpi", "container", "--bind", tmp_path, writable]
    code, err = during(words, tmp_path, home, exchange)
    assert code == ExitCode.FAILED and "error[signature-changed]" in err, err


def test_signature_of_a_built_image_goes_where_its_copy_goes(
    tmp_path: Path, home: dict[str, str]
) -> None:
    hosts.image()
    entry = read_entry(Cache.default(), "mpi-base")
    assert entry is not None
    kept = signature.signature_file(Path(entry.path))
    before = kept.read_bytes() if kept.exists() else None
    try:
        assert hosts.fairlead("sign", "mpi-base", env=home).returncode == 0
        assert hosts.fairlead("verify", "mpi-base", env=home).returncode == 0
        out = tmp_path / "mine.sif"
        done = hosts.fairlead("build", "mpi-base", "-o", out, env=home)
        assert done.returncode == 0, done.stderr
        assert hosts.fairlead("verify", out, env=home).returncode == 0
    finally:
        if before is None:
            kept.unlink(missing_ok=True)
        else:
            kept.write_bytes(before)


@pytest.mark.full
def test_signature_travels_through_a_registry(
    signed: Path, home: dict[str, str], tmp_path: Path
) -> None:
    """Signed after it was pushed: no digest moves, and whoever pulled it gets the signature too."""
    image = tmp_path / "app.sif"
    shutil.copyfile(signed, image)
    there = {**home, **hosts.new_cache(tmp_path / "cache")}
    with registry() as shore:
        place = f"docker://{shore.host}/ml/app:1"

        def answer(*words: str | Path) -> dict[str, Any]:
            done = hosts.fairlead(*words, "--json", env=there, limit_s=200)
            assert done.returncode == 0, done.stdout + done.stderr
            return hosts.answer(done)

        first = answer("push", image, place)
        assert first["signature"] is None and not answer("pull", place)["signed"]
        refused = hosts.fairlead("run", "--require-signature", place, "--", "true", env=there)
        assert refused.returncode == ExitCode.PREFLIGHT_REFUSED, refused.stderr

        signature.carry(signed, image)
        second = answer("push", image, place)
        assert (second["digest"], second["sif"]) == (first["digest"], first["sif"])
        assert second["signature"].endswith(
            f"sha256-{answer('pull', place)['image']['sif_sha256']}.sig"
        )
        assert 0 < second["bytes_sent"] < 2000
        pulled = answer("pull", place, "-o", tmp_path / "mine.sif")
        assert pulled["cached"] and pulled["signed"]
        for name in (place, tmp_path / "mine.sif"):
            words = ("run", "--require-signature", "--mpi", "container", name, "--", "echo", "here")
            done = hosts.fairlead(*words, env=there)
            assert done.returncode == 0 and done.stdout == "here\n", done.stderr


def flip(file: Path) -> None:
    """One other byte; the file's size and times are as they were, but for the one that nobody can set."""
    before = file.stat()
    with file.open("r+b") as stream:
        byte = stream.read(1)[0]
        stream.seek(0)
        stream.write(bytes([byte ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def unpacked(*words: str | Path, env: dict[str, str]) -> Path:
    """The folder that a launch opens."""
    line = hosts.fairlead("run", "--dry-run", *words, "true", env=env).stdout
    return Path(next(w for w in line.split() if "/unpacked/" in w).removesuffix(":O"))


@pytest.mark.full
@pytest.mark.parametrize("engine", ["charliecloud", "podman"])
def test_signed_image_is_unpacked_again_when_what_was_unpacked_has_changed(
    engine: str, signed: Path, home: dict[str, str]
) -> None:
    words = ("--engine", engine, "--require-signature", "--mpi", "container", signed, "--")
    root = unpacked(*words, env=home)
    for _ in range(2):
        done = hosts.fairlead("run", *words, "cat", "/etc/os-release", env=home)
        assert done.returncode == 0 and done.stdout.startswith("PRETTY_NAME="), done.stderr
    assert "is made again" not in done.stderr, "an engine changes nothing in it"
    inode = root.stat().st_ino
    flip(root / "usr/lib/os-release")
    done = hosts.fairlead("run", *words, "cat", "/etc/os-release", env=home)
    assert done.returncode == 0 and done.stdout.startswith("PRETTY_NAME="), done.stderr
    assert root.stat().st_ino != inode
    shutil.rmtree(next(root.parent.glob(f".{root.name}.*.old")))


def test_signed_image_whose_unpacked_files_change_while_it_runs_is_reported(
    signed: Path, tmp_path: Path, home: dict[str, str]
) -> None:
    words = ("--engine", "charliecloud", "--require-signature", "--mpi", "container")
    root = unpacked(*words, signed, "--", env=home)
    code, err = during(
        [*words, "--bind", tmp_path, signed],
        tmp_path,
        home,
        lambda: flip(root / "usr/lib/os-release"),
    )
    assert code == ExitCode.FAILED and "error[signature-changed]" in err, err
    assert f"{root} was written to or replaced" in err


@pytest.mark.full
def test_sif_of_a_signed_layout_is_made_again_when_it_has_changed(
    tmp_path: Path, home: dict[str, str]
) -> None:
    hosts.image()
    layout = tmp_path / "layout"
    done = hosts.fairlead("build", "mpi-base", "--format", "oci", "-o", layout, env=home)
    assert done.returncode == 0, done.stderr
    assert hosts.fairlead("sign", layout, env=home).returncode == 0
    words = ("run", "--require-signature", "--mpi", "container", "--json", layout, "--", "echo", "here")  # fmt: skip
    done = hosts.fairlead(*words, env=home)
    assert done.returncode == 0, done.stdout + done.stderr
    sif = Path(hosts.answer(done)["image"]["path"])
    whole = sif.read_bytes()
    assert sif.name.startswith("layers-")
    flip(sif)
    done = hosts.fairlead(*words, env=home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sif.read_bytes() == whole
