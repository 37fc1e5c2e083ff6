"""What builds keep goes when it is old and unused."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fairlead_build.cache.store import KEPT_S, Cache, sweep, used
from fairlead_build.formats.images import trees_in_use


def test_sweep_old_parts_go_and_used_or_named_ones_stay(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.make()
    aged = time.time() - KEPT_S - 60
    old = [cache.debian("a"), cache.tree("a"), cache.tree_record("a"), cache.source("a") / "made"]
    kept = [cache.debian("b"), cache.tree("named"), cache.tree_record("named"), cache.debian("new")]
    for path in (*old, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    for path in (*old, cache.source("a"), *kept[:3]):
        os.utime(path, (aged, aged))
    used(cache.debian("b"), cache.debian("gone"))
    sweep(cache, {"named"})
    assert not any(path.exists() for path in old) and all(path.exists() for path in kept)
    assert not cache.source("a").exists() and trees_in_use(cache) == set()
