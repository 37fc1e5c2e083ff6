"""What a site's profile adds to a plan: paths to see in the container, devices, variables.

The user's own comes before the profile's: a variable that the shell sets stays as it is, a path that
the user binds is not bound again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.engines.model import Engine
from fairlead.site.model import Site, Status
from fairlead.site.resolved_paths import Here
from fairlead.swap.layout import Line


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
    lines += [Line("bind", path, _says(site, "binds.paths")) for path in binds]
    lines += [
        Line("left out", pattern, f"{_says(site, 'binds.paths')}; it is not on this machine")
        for pattern in here.absent
    ]
    wanted = [("environment.set", site.environment.set)]
    if gpu:
        wanted.append(("gpu.set", site.gpu.set))
    for section, values in wanted:
        for name, value in values.items():
            why = _says(site, f"{section}.{name}")
            if name in shell:
                lines.append(Line("left out", f"{name}={value}", f"{why}; your shell sets it"))
                continue
            env[name] = value
            lines.append(Line("env", f"{name}={value}", why))
    return FromSite(binds, env, tuple(lines))


def with_options(engine: Engine, site: Site, *, gpu: bool, own: Sequence[str] = ()) -> Engine:
    """``engine`` with the words that the profile has for it.

    Args:
        own: the user's words for it, which are passed on by themselves.
    """
    words: list[str] = []
    reasons: list[tuple[str, str]] = []
    for section, options in (
        ("engine.options", site.engine.options),
        *((("gpu.options", site.gpu.options),) if gpu else ()),
    ):
        more = [w for w in options.get(engine.kind, ()) if w not in engine.options]
        if more:
            words += more
            reasons.append((" ".join(more), _says(site, f"{section}.{engine.kind}")))
    # With these Apptainer makes a user namespace each time it starts; others mean something else by them.
    apart = engine.kind == "apptainer" and any(
        w in ("--fakeroot", "-f", "--userns", "-u") for w in (*words, *own)
    )
    return replace(
        engine,
        options=(*engine.options, *words),
        reasons=(*engine.reasons, *reasons),
        userns_per_rank=engine.userns_per_rank or apart,
    )


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


def _says(site: Site, key: str) -> str:
    """Which profile says so, and how well that is known."""
    origin = site.origins.get(key) or site.origins.get(key.rpartition(".")[0])
    profile = origin.profile if origin else site.name
    return f"the profile {profile} says so ({known_by(site, key)})"
