"""Which site profile do the checks use, and how well is it known?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World
from fairlead.site.model import COUNTED, Site


def examine(world: World) -> Iterator[Diagnosis]:
    profile = world.profile()
    if profile.site:
        yield well(f"`{profile.site.name}`, {profile.reason}", _known(profile.site))
        return
    named = world.environ.get("FAIRLEAD_SITE", "")
    for finding in profile.findings:
        if finding.check == "site-detect":
            yield note("site-profile-none", found=finding)
        else:  # a name that is unknown, a file with mistakes: `run` would stop at it too
            yield ill(
                "site-profile-named-by-variable" if named else "site-profile",
                found=finding,
                named=named,
            )


def _known(site: Site) -> str:
    """``41 values: 30 documented, 2 from users, 9 guessed``."""
    counts = Counter(origin.status for origin in site.origins.values())
    parts = [f"{counts[status]} {word}" for status, word in COUNTED.items() if counts[status]]
    known = f"{sum(counts.values())} values: {', '.join(parts)}" if parts else ""
    return "\n".join(filter(None, [known, *site.notes]))


CHECK = Check("site-profile", "the site profile", examine, Topic.MACHINE, order=10)
