"""The options that a site's profile has for a container engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fairlead.engines.model import Engine
from fairlead.engines.registry import ENGINES
from fairlead.site.model import Site


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
            reasons.append((" ".join(more), site.says(f"{section}.{engine.kind}")))
    parts = ENGINES.get(engine.kind).userns_options if engine.kind in ENGINES else ()
    apart = any(word in parts for word in (*words, *own))
    return replace(
        engine,
        options=(*engine.options, *words),
        reasons=(*engine.reasons, *reasons),
        userns_per_rank=engine.userns_per_rank or apart,
    )
