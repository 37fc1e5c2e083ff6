"""``python3 -m fairlead.notebook.kernel FOLDER``: the kernel of a session.

It outlives the servers and browsers that show it: what cells put out is kept in the session's folder, and a request to
shut down is obeyed only as a request to restart. After ``idle_s`` without a cell it ends the session.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fairlead.base.process import raise_open_files
from fairlead.notebook import shown_errors, signals, variables
from fairlead.notebook.display import spans
from fairlead.notebook.journal import Journal
from fairlead.notebook.magics import RanksMagics
from fairlead.notebook.ranks import Ranks
from fairlead.notebook.settings import (
    KERNEL,
    RUN,
    SAVE,
    SAVED_AT,
    STATE,
    Settings,
    order,
    read_json,
    read_settings,
    write_private,
)

_LOOK_S = 0.2
_CLOCKS_S = 2.0  # by which clocks of a file system may be behind


def main() -> None:
    from ipykernel.kernelapp import IPKernelApp
    from traitlets.config import Config

    folder = Path(sys.argv[1])
    settings = read_settings(folder)
    os.umask(0o077)
    raise_open_files()  # each rank has a connection
    for left in Path(settings.sockets).glob("kernel-*"):  # of a kernel that was killed
        left.unlink(missing_ok=True)
    config = Config()
    config.IPKernelApp.connection_file = str(folder / KERNEL)
    config.IPKernelApp.parent_handle = 0  # it outlives the server that shows it
    config.IPKernelApp.kernel_class = _outliving()
    profile = Path(settings.sockets, "profile")
    profile.mkdir(mode=0o700, exist_ok=True)
    config.ProfileDir.location = str(profile)
    app = IPKernelApp.instance(config=config)
    app.initialize([])
    ranks = Ranks(settings)
    app.shell.register_magics(RanksMagics(app.shell, ranks))
    app.shell.push({"ranks": ranks}, interactive=False)
    shown_errors.explain(app.shell)
    _Watch(settings, app, ranks).begin()
    warm = threading.Thread(target=_warm, args=(ranks,), name="warm", daemon=True)
    warm.start()
    # A cell that came before would start engines of its own.
    app.shell.events.register("pre_run_cell", lambda info: warm.join())
    app.start()


def _outliving() -> type:
    """A kernel that goes on when a server shuts it down; `%ranks stop` ends it."""
    from ipykernel.ipkernel import IPythonKernel

    class Kernel(IPythonKernel):  # type: ignore[misc]
        async def shutdown_request(self, stream: Any, ident: Any, parent: Any) -> None:
            if parent["content"]["restart"]:
                await super().shutdown_request(stream, ident, parent)
                return
            content = {"status": "ok", "restart": False}
            self.session.send(stream, "shutdown_reply", content, parent, ident=ident)

    return Kernel


def _warm(ranks: Ranks) -> None:
    """Imports what the first cell on ranks needs, and what notebooks of others begin with."""
    from fairlead.notebook import others

    others.install(ranks)


class _Watch:
    """Follows what the kernel does: its journal, its idle time, its signals."""

    def __init__(self, settings: Settings, app: Any, ranks: Ranks):
        self._settings, self._app, self._ranks = settings, app, ranks
        self._folder = Path(settings.folder)
        self._idle_since: float | None = time.monotonic()
        self._saving = threading.Lock()

    def begin(self) -> None:
        self._keep_output()
        variables.prepare()
        signals.follow({signal.SIGTERM: self._end})
        self._announce()
        threading.Thread(target=self._look, name="look", daemon=True).start()

    def _keep_output(self) -> None:
        journal, send = Journal(self._folder), self._app.session.send

        def sending(
            stream: Any,
            message: Any,
            content: Any = None,
            parent: Any = None,
            *args: Any,
            **more: Any,
        ) -> Any:
            if isinstance(message, str):
                kind, shown, about = message, content, parent
            else:
                kind, shown = message["msg_type"], message["content"]
                about = {"header": message["parent_header"]}
            journal.note(kind, shown, about)
            if kind == "status":
                self._state(shown["execution_state"])
            return send(stream, message, content, parent, *args, **more)

        self._app.session.send = sending

    def _state(self, state: str) -> None:
        if state == "busy":
            self._idle_since = None
        elif state == "idle":
            self._idle_since = time.monotonic()

    def _announce(self) -> None:
        run = read_json(self._folder / RUN).get("run")
        state = {"pid": os.getpid(), "host": socket.gethostname(), "ready": time.time(), "run": run}
        write_private(self._folder / STATE, json.dumps(state))

    def _look(self) -> None:
        """Saves when the session asks for it, and ends it when it has been idle for too long."""
        limit, asked = self._settings.idle_s, self._folder / SAVE
        while True:
            time.sleep(_LOOK_S)
            if asked.exists():
                asked.unlink(missing_ok=True)
                self.save()
            since = self._idle_since
            if limit and since is not None and time.monotonic() - since > limit:
                order(self._folder, do="stop", why=f"no cell has run for {limit:.0f} s")
                limit = 0.0

    def _end(self) -> None:
        """Saves, and ends: at a SIGTERM that is not the session's, but the end of its job."""
        try:
            if variables.are_left(self._folder, self._folder):
                self.save()
        finally:
            signals.die(signal.SIGTERM)

    def save(self) -> None:
        """Has this kernel and ranks save what they are asked to save, and says so in a file."""
        with self._saving:
            begun = time.time()
            variables.save_named(self._folder, "kernel", self._app.shell.user_ns)
            silent = self._ranks.save_named()
            text, failed = variables.saved(self._folder, begun - _CLOCKS_S)
            if silent:
                why = f"nothing was written; see {self._folder}/world-*/ranks.log"
                failed[f"ranks {spans(silent)}"] = why
            done = {"at": time.time(), "text": text, "failed": failed}
            write_private(self._folder / SAVED_AT, json.dumps(done))


if __name__ == "__main__":
    main()
