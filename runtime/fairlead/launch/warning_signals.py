"""The signals by which schedulers warn of a job's end, handed on to the ranks.

``#SBATCH --signal=B:USR1@300`` reaches the batch script, and by it fairlead; no engine or launcher between here and the
ranks passes it on reliably. So it goes to the ranks' own processes, on every node, and only to those that have a
handler for it: the others would die of it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from fairlead.base.errors import Finding, info
from fairlead.launch import processes
from fairlead.launch.nodes import Nodes

FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)


class WarningSignals:
    """While it is entered, the signals that reach this process reach the ranks of a launch. In the main thread only."""

    def __init__(self, run_id: str, nodes: Nodes | None, on_finding: Callable[[Finding], None]):
        self._run_id, self._nodes, self._on_finding = run_id, nodes, on_finding
        self._arrived: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> WarningSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in FORWARDED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def look(self) -> None:
        """Hands on what has arrived since the last call."""
        while self._arrived:
            number = signal.Signals(self._arrived.pop(0))
            count = processes.signal_ranks(processes.of_run(self._run_id), number)
            others = self._nodes.tell(ask="signal", signal=int(number)) if self._nodes else 0
            self._on_finding(info("signal-forwarded", name=number.name, count=count, others=others))

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)
