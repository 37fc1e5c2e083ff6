"""What a tree is shown of the store's wheels, and what is copied for it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from fairlead.base.progress import Silent
from fairlead.base.system import Mount
from fairlead_build.base.digest import sha256_of
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import Wheel
from fairlead_build.render import lock_of
from fairlead_build.tree import wheel_staging
from fairlead_build.tree.job import TreeJob

OPEN, CLOSED = "open-1-py3-none-any.whl", "closed-1-py3-none-any.whl"


@pytest.fixture
def job(tmp_path: Path) -> TreeJob:
    loaded = load_recipe("mpi-base")
    lock = lock_of(loaded)
    assert lock is not None
    return TreeJob(loaded, lock, Cache(tmp_path / "cache"), Silent())


@pytest.fixture
def wheels(job: TreeJob, tmp_path: Path) -> list[Wheel]:
    """One that everybody may read, and one that only its owner may."""
    made = []
    for name, mode in ((OPEN, 0o644), (CLOSED, 0o600)):
        file = tmp_path / name
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"{name}.py", b"x" * 100)
        digest = sha256_of(file)
        job.cache.blob(digest).parent.mkdir(parents=True, exist_ok=True)
        file.rename(job.cache.blob(digest)).chmod(mode)
        known = next(wheel for wheel in job.lock.wheel if wheel.role == "python")
        made.append(known.model_copy(update={"file": name, "sha256": digest}))
    return made


@pytest.mark.parametrize(("kind", "shown"), [("ext4", [OPEN]), ("nfs4", []), ("fuse.sshfs", [])])
def test_wheel_is_shown_where_its_mode_lets_a_jail_read_it_and_else_copied(
    job: TreeJob,
    wheels: list[Wheel],
    kind: str,
    shown: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wheel_staging, "mount_of", lambda folder: Mount("/", kind))
    with job.progress.stage("check wheels") as stage:
        seen = wheel_staging.stage_wheels(wheels, (), job, tmp_path / "scratch", stage)
    digests = {wheel.file: wheel.sha256 for wheel in wheels}
    assert seen == {f"python/{name}": job.cache.blob(digests[name]) for name in shown}
    for name, digest in digests.items():
        place = tmp_path / "scratch" / "stage" / "python" / name
        if name in shown:
            assert place.stat().st_size == 0
        else:
            assert sha256_of(place) == digest and place.stat().st_mode & 0o004
