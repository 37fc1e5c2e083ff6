"""How well a value of a profile is known, and who says so; for messages and ``explain``."""

from __future__ import annotations

from fairlead.site.model import Site, Status


def known_by(site: Site, key: str) -> str:
    """How well a value of a profile is known, and who says so, as ``documented: …``."""
    origin = site.origins.get(key) or site.origins.get(key.rpartition(".")[0])
    if origin is None:
        return "fairlead's default"
    return f"{_HOW[origin.status]}: {origin.source}"


_HOW = {
    Status.RUN: "seen to work",
    Status.DOCUMENTED: "documented",
    Status.USER: "from a user",
    Status.GUESS: "a guess",
}


def says(site: Site, key: str) -> str:
    """Which profile says so, and how well that is known."""
    origin = site.origins.get(key) or site.origins.get(key.rpartition(".")[0])
    profile = origin.profile if origin else site.name
    return f"the profile {profile} says so ({known_by(site, key)})"
