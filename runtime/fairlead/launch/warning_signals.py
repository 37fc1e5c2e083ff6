"""The signals by which schedulers warn of a job's end, handed on to the ranks.

``#SBATCH --signal=B:USR1@300`` reaches the batch script, and by it fairlead; no engine or launcher between here and the
ranks passes it on reliably. So it goes to the ranks' own processes, on every node, and only to those that have a
handler for it: the others would die of it. SIGTERM ends the launch, once the processes that handle it have ended or
:data:`GRACE_S` have passed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from fairlead.base.errors import Finding, info
from fairlead.launch import processes
from fairlead.launch.nodes import Nodes

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
FORWARDED = (*WARNINGS, signal.SIGTERM)
GRACE_S = 25.0  # Slurm kills 30 s after SIGTERM (KillWait)
_ANSWER_S = 2.0  # of the agents on other nodes


class WarningSignals:
    """While it is entered, the signals that reach this process reach the ranks of a launch. In the main thread only.

    Attributes:
        warned_at: when the first arrived, by the monotonic clock; None before.
        handled: processes that had a handler for it, here and elsewhere.
    """

    def __init__(self, run_id: str, nodes: Nodes | None, on_finding: Callable[[Finding], None]):
        self.warned_at: float | None = None
        self.handled = 0
        self._run_id, self._nodes, self._on_finding = run_id, nodes, on_finding
        self._arrived: list[int] = []
        self._before: dict[int, Any] = {}
        self._asked: dict[tuple[str, int], signal.Signals] = {}  # of agents that are to answer
        self._terminated_at: float | None = None
        self._catch_term = 0

    def __enter__(self) -> WarningSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in FORWARDED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def terminated(self) -> bool:
        """Whether a SIGTERM has come."""
        return self._terminated_at is not None

    def look(self) -> None:
        """Hands on what has arrived since the last call.

        Raises:
            KeyboardInterrupt: after a SIGTERM, when nothing handles it, its time is over, or a second one came.
        """
        while self._arrived:
            self.send(signal.Signals(self._arrived.pop(0)))
        self._hear()
        if self._terminated_at is None:
            return
        passed_s = time.monotonic() - self._terminated_at
        waits = self._catch_term or (self._asked and passed_s < _ANSWER_S)
        if not waits or passed_s > GRACE_S:
            raise KeyboardInterrupt

    def send(self, number: signal.Signals) -> None:
        """Hands a signal to the ranks' processes.

        Raises:
            KeyboardInterrupt: it is the second SIGTERM.
        """
        if number is signal.SIGTERM and self._terminated_at is not None:
            raise KeyboardInterrupt
        now = time.monotonic()
        self.warned_at = self.warned_at or now
        # The others first, so that all nodes look for their processes at the same time: a handler that saves on all ranks
        # hangs if some of them begin the next step before.
        asked = self._nodes.ask_all(ask="signal", signal=int(number)) if self._nodes else []
        self._asked |= dict.fromkeys(asked, number)
        count = processes.signal_ranks(processes.of_run(self._run_id), number)
        self._count(number, count)
        if number is signal.SIGTERM:
            self._terminated_at = now
        if number is not signal.SIGTERM or count or asked:
            self._on_finding(
                info("signal-forwarded", name=number.name, count=count, others=len(asked))
            )

    def _hear(self) -> None:
        for question, number in list(self._asked.items()):
            if self._nodes and (answer := self._nodes.answers.pop(question, None)):
                del self._asked[question]
                count = answer[1].get("signalled")
                self._count(number, count if isinstance(count, int) else 0)

    def _count(self, number: signal.Signals, count: int) -> None:
        self.handled += count
        if number is signal.SIGTERM:
            self._catch_term += count

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)
