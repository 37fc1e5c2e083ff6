"""The format of ``sitecfg/NAME.toml``: what a profile may say, checked when it is read.

``site.py`` turns a profile into the :class:`fairlead.site.Site` that a plan needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from fairlead.tomlfile import Strict, load


class About(Strict):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="the profile's name")
    summary: str = Field(description="one line for people")
    source: str = Field(description="where its values come from")
    status: Literal["run", "documented", "user", "guess"] = Field(
        description="how well they are known"
    )


class Detect(Strict):
    absent_programs: tuple[str, ...] = Field((), description="programs that must not be on PATH")
    absent_paths: tuple[str, ...] = Field((), description="paths that must not exist")


class Engines(Strict):
    kinds: tuple[Literal["apptainer"], ...] = Field(
        description="container engines, preferred first"
    )


class Launchers(Strict):
    kinds: tuple[Literal["mpiexec"], ...] = Field(description="what starts ranks, preferred first")


class Fabric(Strict):
    kind: Literal["none", "ethernet"] = Field(description="the network between nodes")
    accepts: tuple[str, ...] = Field(description="transports that a proof may find in use")


class Watchdog(Strict):
    start_s: float = Field(
        30, gt=0, le=3600, description="seconds until every rank must have reported"
    )


class Images(Strict):
    require_signature: bool = Field(
        False, description="whether images must be signed with a trusted key"
    )


class SiteProfile(Strict):
    """One ``sitecfg/NAME.toml``."""

    site: About
    detect: Detect
    engine: Engines
    launcher: Launchers
    fabric: Fabric
    watchdog: Watchdog = Watchdog(start_s=30)
    images: Images = Images(require_signature=False)


def read(path: Path) -> SiteProfile:
    """The profile in ``path``.

    Raises:
        FairleadError: exit code 2; one finding for each mistake.
    """
    return load(path, SiteProfile, f"fairlead site show {path.stem}")
