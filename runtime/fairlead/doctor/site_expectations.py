"""How a check speaks of the site's profile: what is only guessed there gives a warning at most."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.base.errors import Severity
from fairlead.base.system import View
from fairlead.site import fabrics
from fairlead.site.model import Site, Status

_VERBS = {
    Status.RUN: "was seen to have",
    Status.DOCUMENTED: "documents",
    Status.USER: "has from a user",
    Status.GUESS: "guesses",
}


def says(site: Site, key: str, value: str) -> str:
    """A profile's value and how well it is known: ``the profile `lumi` guesses pmi2 (launcher.pmi)``."""
    origin = site.origins.get(key)
    if origin is None:
        return f"the profile `{site.name}` leaves {key} to fairlead, which takes {value}"
    source = f"{key}; {origin.source}" if origin.source else key
    return f"the profile `{site.name}` {_VERBS[site.status(key)]} {value} ({source})"


def severity(site: Site, key: str) -> Severity:
    """How much it matters that a machine contradicts a value."""
    sure = site.status(key) in (Status.RUN, Status.DOCUMENTED)
    return Severity.ERROR if sure else Severity.WARNING


def variables(site: Site) -> dict[str, Mapping[str, str]]:
    """The variables that a profile sets in containers, by their key."""
    return {"environment.set": site.environment.set, "gpu.set": site.gpu.set}


# Networks that have devices of their own, which MPI reaches past the kernel's TCP.
FABRICS = {
    "infiniband": "InfiniBand",
    "omni-path": "Omni-Path",
    "slingshot": "Slingshot",
    "aries": "Aries",
    "efa": "EFA",
}
# Device nodes by which one is known to be there (Linux' uverbs, hfi1, HPE's cxi, Cray's gni drivers).
DEVICES = {
    "infiniband": "/dev/infiniband/uverbs*",
    "omni-path": "/dev/hfi1_*",
    "slingshot": "/dev/cxi*",
    "aries": "/dev/kgni0",
}


def fast_devices(world: View) -> dict[str, str]:
    """A device of each fast network; InfiniBand and EFA have the same device nodes."""
    devices = {kind: paths[0] for kind in DEVICES if (paths := world.matching(DEVICES[kind]))}
    if "infiniband" in devices:
        kinds = {card.profile_kind for card in fabrics.cards(world)}
        if "efa" in kinds:
            devices["efa"] = devices["infiniband"]
            if "infiniband" not in kinds:
                del devices["infiniband"]
    return devices
