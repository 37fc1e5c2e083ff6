"""What a site's profile adds to a plan: paths to see in the container, devices, variables.

The user's own comes before the profile's: a variable that the shell sets stays as it is, a path that
the user binds is not bound again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fairlead.site.model import Site
from fairlead.site.resolved_paths import Here
from fairlead.swap.model import Line


@dataclass(frozen=True)
class FromSite:
    """Its part of a plan.

    Attributes:
        binds: paths, seen under the same name.
    """

    binds: tuple[str, ...]
    env: Mapping[str, str]
    lines: tuple[Line, ...]


def from_site(
    site: Site, here: Here, *, gpu: bool, shell: Collection[str], bound: Collection[str]
) -> FromSite:
    """What ``site`` adds.

    Args:
        gpu: messages are to go from GPU to GPU.
        shell: names of variables that the user's shell sets.
        bound: paths of the container that the user binds.
    """
    lines: list[Line] = []
    env: dict[str, str] = {}
    binds = tuple(path for path in here.binds if path not in bound)
    lines += [Line("bind", path, site.says("binds.paths")) for path in binds]
    lines += [
        Line("left out", pattern, f"{site.says('binds.paths')}; it is not on this machine")
        for pattern in here.absent
    ]
    wanted = [("environment.set", site.environment.set)]
    if gpu:
        wanted.append(("gpu.set", site.gpu.set))
    for section, values in wanted:
        for name, value in values.items():
            why = site.says(f"{section}.{name}")
            if name in shell:
                lines.append(Line("left out", f"{name}={value}", f"{why}; your shell sets it"))
                continue
            env[name] = value
            lines.append(Line("env", f"{name}={value}", why))
    return FromSite(binds, env, tuple(lines))
