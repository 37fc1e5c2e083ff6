"""The kernel's client of its ranks: ipyparallel's, which also knows which are registered and whose output reaches it.

The controller publishes which engines have registered; engines publish what a cell puts out, and that it has ended. What is
published before the kernel's subscription is connected is lost without a trace: an engine would never be there, and a
cell would wait forever for its end.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ipyparallel

_ASK_S = 0.25  # between two requests to an engine that has not been heard
_COUNT_S = 1.0  # between two requests for the engines that the controller knows of
_CONNECT_S = 60.0  # for the controller to answer


class Client(ipyparallel.Client):  # type: ignore[misc]
    """A client of one world.

    Args:
        path: the controller's connection file.
    """

    def __init__(self, path: Path):
        self._heard: set[str] = set()
        self._asked = self._counted = 0.0
        super().__init__(connection_info=str(path), timeout=_CONNECT_S)

    def _dispatch_iopub(self, frames: list[Any]) -> Any:
        sender = frames[0].bytes.decode("utf-8", "replace").split(".")  # `engine.3.status`
        if sender[0] == "engine" and len(sender) > 1:
            self._heard.add(sender[1])
        return super()._dispatch_iopub(frames)

    def registered(self, wanted: int) -> list[int]:
        """The engines that the controller knows of; while they are fewer than ``wanted``, it is asked for all of them."""
        if len(self.ids) < wanted and time.monotonic() - self._counted > _COUNT_S:
            self._counted = time.monotonic()
            self._send(self._query_stream, "connection_request").add_done_callback(self._count)
        return list(self.ids)

    def _count(self, answer: Any) -> None:
        with suppress(Exception):  # there was none: the next request is due
            self._update_engines(answer.result()["content"]["engines"])

    def unheard(self) -> list[int]:
        """The engines of which nothing has been heard yet. Each is asked for a sign, which it also gives while it runs
        a cell: a thread of its own answers on the control channel, and publishes that it does.
        """
        known = [number for number in self.ids if str(number) not in self._heard]
        if known and time.monotonic() - self._asked > _ASK_S:
            self._asked = time.monotonic()
            for ident in self._build_targets(known)[0]:
                self._send(self._control_stream, "kernel_info_request", content={}, ident=ident)
        return known
