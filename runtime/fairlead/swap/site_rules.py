"""What a site's profile adds to a plan: paths to see in the container, devices, variables.

The user's own comes before the profile's: a variable that the shell sets stays as it is, a path that
the user binds is not bound again.
"""

from __future__ import annotations

from fairlead.site.model import Site
from fairlead.site.resolved_paths import Here
from fairlead.swap.model import Bind, Line, Request
from fairlead.swap.remedies.model import Changes


def from_site(site: Site, here: Here, request: Request) -> Changes:
    """What ``site`` adds to what the user requests."""
    bound = {bind.target for bind in request.binds}
    paths = [path for path in here.binds if path not in bound]
    why = site.says("binds.paths")
    lines = [Line("bind", path, why) for path in paths]
    lines += [Line("left out", p, f"{why}; it is not on this machine") for p in here.absent]
    env: dict[str, str] = {}
    sections = {
        "environment.set": site.environment.set,
        "gpu.set": site.gpu.set if request.gpu else {},
    }
    for section, values in sections.items():
        for name, value in values.items():
            why = site.says(f"{section}.{name}")
            if name in request.shell:
                lines.append(Line("left out", f"{name}={value}", f"{why}; your shell sets it"))
            else:
                env[name] = value
                lines.append(Line("env", f"{name}={value}", why))
    return Changes(tuple(Bind(path, path) for path in paths), env, tuple(lines))
