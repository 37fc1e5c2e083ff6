"""The name of a signed index of .debs, as recipes and locks use it."""

from __future__ import annotations

from dataclasses import dataclass, replace

_DISTRIBUTIONS = ("debian", "ubuntu")
# By distribution, and by distribution and SECURITY where that is an archive of its own.
_OVERRIDES = {
    "debian": "FAIRLEAD_INDEX_DEBIAN",
    "debian-security": "FAIRLEAD_INDEX_DEBIAN_SECURITY",
    "ubuntu": "FAIRLEAD_INDEX_UBUNTU",
}


@dataclass(frozen=True)
class AptIndex:
    """One signed index of .debs, as a lock names it: ``Debian bookworm main``."""

    distribution: str
    suite: str
    components: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.distribution.capitalize()} {self.suite} {' '.join(self.components)}"

    @property
    def override(self) -> str:
        """The variable that names another mirror of it."""
        security = self.suite.endswith("-security")
        key = f"{self.distribution}-security" if security else self.distribution
        return _OVERRIDES.get(key, _OVERRIDES[self.distribution])

    @property
    def security(self) -> AptIndex:
        """Where this release gets its corrections from."""
        return replace(self, suite=f"{self.suite}-security")

    @classmethod
    def parse(cls, name: str) -> AptIndex | None:
        """The index that a lock calls ``name``; None when it is not one of .debs."""
        distribution, _, rest = name.partition(" ")
        suite, *components = rest.split(" ")
        if distribution.lower() not in _DISTRIBUTIONS or not suite or not components:
            return None
        return cls(distribution.lower(), suite, tuple(components))
