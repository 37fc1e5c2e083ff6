"""Downloads wheels from wherever this machine's pip finds their indexes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Progress, Stage
from fairlead_build.base.proc import run
from fairlead_build.cache.store import Cache, adopt, workspace
from fairlead_build.recipe.lock import Wheel
from fairlead_build.resolve.pip import (
    PYPI,
    further_places,
    pip,
    pip_environment,
    place_of,
    variable_of,
)

Role = Literal["python", "mpi", "installer", "build"]


@dataclass(frozen=True)
class Wanted:
    """A wheel to download. ``size`` is None until the file is here: pip's report lacks it."""

    name: str
    version: str
    file: str
    sha256: str
    index: str
    role: Role
    size: int | None = None

    @classmethod
    def of(cls, wheel: Wheel) -> Wanted:
        """A wheel of a lock."""
        return cls(**wheel.model_dump())


def fetch_wheels(
    wheels: Sequence[Wanted], target: Sequence[str], cache: Cache, progress: Progress, given: str
) -> None:
    """Downloads wheels.

    Args:
        target: pip's options that describe the image (``pip.target_of``).
        given: what the user called the recipe; for remedies.
    Raises:
        FairleadError: one is gone or differs, or this machine does not know where its index is.
    """
    sizes = [w.size for w in wheels]
    total = sum(size or 0 for size in sizes) if None not in sizes else None
    with (
        progress.stage("download wheels", total, "B") as stage,
        workspace(cache.root / "work", "wheels-") as folder,
    ):
        # One call a role: the installer's pip may also be an ordinary dependency's version.
        for role in ("python", "mpi", "installer", "build"):
            wanted = [w for w in wheels if w.role == role]
            if wanted:
                _download_wheels(wanted, target, folder, stage, given)
        for wheel in {w.sha256: w for w in wheels}.values():
            file, relock = folder / wheel.file, f"fairlead recipe lock {given}"
            adopt(cache, file, wheel.sha256, wheel.size, f"wheel {wheel.name}", relock)
        stage.result(f"{len(wheels)} wheels")


def _download_wheels(
    wheels: Sequence[Wanted], target: Sequence[str], folder: Path, stage: Stage, given: str
) -> None:
    pins = folder / "requirements.txt"
    pins.write_text("".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in wheels))
    so_far, lost = 0, ""

    def read(line: str) -> None:
        nonlocal so_far, lost
        if match := re.match(r"Progress (\d+) of \d+", line):
            now = int(match[1])
            stage.advance(now - so_far if now >= so_far else now)
            so_far = now
        elif match := re.match(r"\s*(?:Downloading|Using cached) (\S+)", line):
            so_far = 0
            stage.note(match[1].rsplit("/", 1)[-1])
        elif match := re.search(r"No matching distribution found for ([A-Za-z0-9._-]+)==", line):
            lost = match[1]

    argv = [
        *pip(), "download", "--no-deps", "--require-hashes", "--progress-bar", "raw",
        *further_places(w.index for w in wheels), *target, "--dest", folder, "-r", pins,
    ]  # fmt: skip
    doing = "download the wheels that the lock names"
    remedy = f"run the same command again; if a wheel has vanished, `fairlead recipe lock {given}`"
    env = {**pip_environment(), "TMPDIR": str(folder)}
    try:
        run(argv, env=env, doing=doing, remedy=remedy, on_line=read)
    except FairleadError:
        wheel = next((w for w in wheels if w.name == lost), None)
        if wheel is None:
            raise
        raise _vanished(wheel, given) from None


def _vanished(wheel: Wanted, given: str) -> FairleadError:
    if wheel.index == PYPI:
        return fail("wheel-vanished-configuration", wheel=wheel, given=given)
    if place_of(wheel.index) is None:
        return unset(wheel.index, f"wheel {wheel.name} {wheel.version}")
    return fail("wheel-vanished", wheel=wheel, variable=variable_of(wheel.index), given=given)


def unset(index: str, what: str) -> FairleadError:
    """Nothing says where ``index`` is, and pip's own places do not have ``what``."""
    return fail("index-place-unknown", index=index, variable=variable_of(index), what=what)
