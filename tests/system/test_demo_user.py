"""``make demo`` by a real ordinary user, for whom an administrator has prepared the machine only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import hosts

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.full


@pytest.fixture
def home() -> Iterator[Path]:
    """The home of a user made for this test, with a clone in it; both go away again.

    Packages are the administrator's part; ``make setup``, which ran before the tests, has seen to
    them.
    """
    base = Path(tempfile.mkdtemp(prefix="fairlead-demo-"))
    base.chmod(0o755)
    try:
        with hosts.account("demo", base) as (name, home):
            _clone(home / "fairlead")
            subprocess.run(["chown", "-R", f"{name}:", home], check=True)
            yield home
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _clone(folder: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def test_demo_by_an_ordinary_user_is_proved_and_learns(home: Path) -> None:
    status = home.stat()
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "REQUESTS_"))}
    done = subprocess.run(
        ["make", "demo"],
        cwd=home / "fairlead",
        env={**kept, "HOME": str(home), "PATH": "/usr/bin:/bin", "NO_COLOR": "1"},
        user=status.st_uid,
        group=status.st_gid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "each rank runs in a separate user namespace" in done.stdout
    report = json.loads((home / "fairlead/fairlead-report/report.json").read_text())
    assert [row["rank"] for row in report["proof"]] == [0, 1]
    assert report["training"]["scores"]["auc"] >= 0.9
    assert len({w["final"] for w in report["training"]["all"]["weights"]}) == 1
