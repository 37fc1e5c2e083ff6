"""Our own wheel: packed in one normal form, the same from a checkout and from an installed copy."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.base.paths import checkout
from fairlead_build.cache.store import Cache
from fairlead_build.tree.wheel import own_wheel, pack

MEMBERS = {
    "pkg/__init__.py": b"x = 1\n",
    "pkg-1.dist-info/METADATA": b"Name: pkg\n",
    "pkg-1.dist-info/RECORD": b"stale",
    "pkg-1.dist-info/INSTALLER": b"pip\n",
}


def test_pack_is_sorted_renews_record_and_drops_the_installers_files() -> None:
    with zipfile.ZipFile(io.BytesIO(pack(MEMBERS))) as archive:
        assert archive.namelist() == [
            "pkg-1.dist-info/METADATA",
            "pkg-1.dist-info/RECORD",
            "pkg/__init__.py",
        ]
        record = archive.read("pkg-1.dist-info/RECORD").decode()
    assert record.endswith("pkg-1.dist-info/RECORD,,\n") and "stale" not in record
    assert pack(dict(reversed(MEMBERS.items()))) == pack(MEMBERS)


def test_pack_without_metadata_is_refused() -> None:
    with pytest.raises(FairleadError, match="incomplete"):
        pack({"pkg/__init__.py": b""})


@pytest.mark.skipif(checkout() is None, reason="runs from a checkout only")
def test_own_wheel_is_the_same_from_an_installed_copy(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.make()
    wheel = own_wheel(cache)
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        info = next(n.split("/")[0] for n in archive.namelist() if n.endswith("/METADATA"))
    name = tmp_path / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    name.write_bytes(wheel)
    site = tmp_path / "site"
    argv = ["-m", "pip", "install", "-q", "--no-compile", "--no-deps", "--no-index", "--target"]
    subprocess.run([sys.executable, *argv, site, name], check=True)
    code = (
        "import hashlib, pathlib, sys; from fairlead_build.tree.wheel import own_wheel;"
        "from fairlead_build.cache.store import Cache; c = Cache(pathlib.Path(sys.argv[1])); c.make();"
        "print(hashlib.sha256(own_wheel(c)).hexdigest())"
    )
    # What an installed copy imports from elsewhere stays reachable; the checkout's code does not.
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code, cache.root],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == hashlib.sha256(wheel).hexdigest(), done.stderr
    # Each keeps its own, so that builds of the other, which may be running, still find theirs.
    assert len(list((cache.root / "runtime").glob("*.whl"))) == 2
