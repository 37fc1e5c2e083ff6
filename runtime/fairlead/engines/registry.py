"""The registry of container engines: one module each, and entry points of the group ``fairlead.engines``."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Mapping, Sequence

from fairlead.base.errors import Finding, error, fail
from fairlead.base.registry import Registry
from fairlead.base.suggest import suggest
from fairlead.engines.model import Driver, Engine

CHOSEN = "FAIRLEAD_ENGINE"
ENGINES: Registry[Driver] = Registry("fairlead.engines", "ENGINE", ("rank_shell",))


def kinds() -> tuple[str, ...]:
    """The engines that fairlead can run with."""
    return tuple(driver.kind for driver in ENGINES if driver.driven)


def choose(
    wanted: str | None, preferred: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Engine:
    """The engine to use: that of ``--engine`` or ``$FAIRLEAD_ENGINE``, else the site's first that is installed.

    Args:
        wanted: value of ``--engine``; None if not given.
        preferred: the site's kinds of engine, in order of preference.
    Raises:
        FairleadError: exit code 2; ``wanted`` is not a kind of engine. Exit code 123; no engine is installed.
    """
    chosen = wanted or environ.get(CHOSEN)
    if chosen and not (chosen in ENGINES and ENGINES.get(chosen).driven):
        by, near = "--engine" if wanted else f"${CHOSEN}", suggest(chosen, kinds())
        names = ", ".join(kinds())
        raise fail("engine-unknown", chosen=chosen, by=by, suggestion=near, kinds=names)
    tried = [chosen] if chosen else [kind for kind in preferred if kind in ENGINES]
    for kind in tried:
        if engine := ENGINES.get(kind).detect(environ):
            return engine
    others = [k for k in kinds() if k not in tried and ENGINES.get(k).detect(environ)]
    why, remedy = f"none was found of: {', '.join(tried)}", "fairlead doctor --fix engine"
    if others:
        why += f"; {', '.join(others)} is here"
        remedy += f", or use --engine {others[0]}"
    elif chosen and chosen != "apptainer":
        remedy = f"install {chosen}, or leave out {'--engine' if wanted else CHOSEN}"
    where = "PATH, and fairlead's own prefix" if "apptainer" in tried else "PATH"
    raise fail(
        "engine-none", what=chosen or "container engine", where=where, why=why, remedy=remedy
    )


def other_image(engine: Engine, image: str, extra: Sequence[str] = ()) -> Finding | None:
    """Why ``engine`` would not start the image that was inspected; None if it starts that one.

    Args:
        image: path of the inspected file or folder.
        extra: the user's options for the engine.
    Raises:
        FairleadError: exit code 121; it cannot open an image of this kind.
    """
    driver = ENGINES.get(engine.kind)
    opened = driver.opens(engine, image, extra)
    if opened == image:
        return None
    fields = {"engine": driver.title, "image": image, "opened": opened}
    if not opened:
        return error("engine-image-unnamed", remedy=driver.store_remedy, **fields)
    try:
        if os.path.samefile(image, opened) or filecmp.cmp(image, opened, shallow=False):  # noqa: PTH121
            return None
    except OSError as exc:
        return error("engine-image-unreadable", reason=exc.strerror or exc, **fields)
    return error("engine-image-other", **fields)
