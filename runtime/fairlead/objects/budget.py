"""A budget of bandwidth for all threads of a process."""

from __future__ import annotations

import threading
import time


class Budget:
    """Lets bytes through at a rate.

    Args:
        rate: bytes per second; 0 for no limit.
    """

    def __init__(self, rate: float):
        self._rate, self._lock, self._free_at = rate, threading.Lock(), time.monotonic()

    def spend(self, count: int) -> None:
        """Waits until ``count`` bytes are within the budget."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 0.1) + count / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)
