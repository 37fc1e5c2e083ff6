"""What builds keep goes when it is old and unused."""

from __future__ import annotations

import os
import subprocess
import sys
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


_INTERRUPTED = """
import pathlib, signal, sys, threading, time
from fairlead_build.cache import store
begun, remove = threading.Event(), store.remove_tree

def slowly(folder):
    begun.set()
    time.sleep(0.5)
    remove(folder)

def interrupt():
    begun.wait()
    time.sleep(0.1)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

store.remove_tree = slowly
threading.Thread(target=interrupt, daemon=True).start()
with store.workspace(pathlib.Path(sys.argv[1]), "work-") as folder:
    (folder / "tree").mkdir()
"""


def test_workspace_goes_also_when_its_removal_is_interrupted(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, tmp_path], capture_output=True, text=True, check=False
    )
    assert "KeyboardInterrupt" in done.stderr and not list(tmp_path.iterdir())
