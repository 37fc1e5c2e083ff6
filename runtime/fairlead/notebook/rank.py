"""``python3 -m fairlead.notebook.rank WORLD``: a rank, which is an engine of ipyparallel, and its keeper.

The keeper is the process that the launcher has started. It outlives its engine, so that the launcher does not end the
other ranks when one dies; it tells the kernel how the engine died, and passes signals on to it. The kernel's listener is
in WORLD, the folder of a world.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from fairlead.base import bounded_json
from fairlead.base.process import tied_to
from fairlead.notebook import shown_errors, signals, variables
from fairlead.notebook.settings import (
    ENGINE,
    START_S,
    VARIABLES,
    WORLD,
    Settings,
    read_json,
    read_settings,
)

LISTENER = "listener.json"  # where the kernel listens for keepers
_AGAIN_S = 0.25  # between two attempts to reach the kernel


def main() -> None:
    world = Path(sys.argv[1])
    settings = read_settings(world.parent)
    reads, writes = os.pipe()
    keeper = os.getpid()
    pid = os.fork()
    if not pid:
        os.close(reads)
        tied_to(keeper, signal.SIGKILL)()
        _engine(settings, world, writes)
    os.close(writes)
    sys.exit(_keep(settings, world, pid, reads))


def _keep(settings: Settings, world: Path, pid: int, reads: int) -> int:
    """Follows an engine, and the kernel's orders, until the launch ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hello = {"rank": -1, "host": socket.gethostname(), "pid": pid, "world": world.name}
    died, kernel, tried, ends = "", None, 0.0, False

    def end(number: int, frame: object) -> None:
        nonlocal ends
        ends = True
        if not died:  # the engine saves its variables
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, end)
    while not (died and ends):
        if kernel is None and hello["rank"] != -1 and time.monotonic() - tried > _AGAIN_S:
            tried = time.monotonic()
            kernel = _reached(settings, world, {**hello, "died": died})
        heard = wait([r for r in (kernel, reads if reads >= 0 else None) if r], _AGAIN_S)
        if reads in heard:
            line = os.read(reads, 4096)
            hello |= bounded_json.loads(line) if line else {}
            os.close(reads)
            reads = -1
        if kernel in heard:
            kernel = _obeyed(kernel, pid if not died else 0)
        if not died and (ended := _ended(pid)) is not None:
            died = ended
            if kernel:
                kernel = _say(kernel, {"died": died})
    return 128 + signal.SIGTERM


def _reached(settings: Settings, world: Path, hello: dict[str, Any]) -> Connection | None:
    where = read_json(world.parent / LISTENER).get("address") or ""
    with suppress(OSError, EOFError, AuthenticationError):
        address: Any = tuple(where) if isinstance(where, list) else where
        kernel = Client(address, authkey=bytes.fromhex(settings.key))
        return _say(kernel, hello)
    return None


def _say(kernel: Connection, what: dict[str, Any]) -> Connection | None:
    try:
        kernel.send_bytes(json.dumps(what).encode())
    except OSError:
        return None
    return kernel


def _obeyed(kernel: Connection, pid: int) -> Connection | None:
    """Does what the kernel asks for; None when it has gone."""
    try:
        asked = bounded_json.loads(kernel.recv_bytes())
    except (OSError, EOFError):
        kernel.close()
        return None
    if asked.get("signal") and pid:
        with suppress(ProcessLookupError):
            os.kill(pid, int(asked["signal"]))
    return kernel


def _ended(pid: int) -> str | None:
    """How the engine has ended, in words; None while it runs. Until its launch ends, none is to end by itself."""
    done, status = os.waitpid(pid, os.WNOHANG)
    if not done:
        return None
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"
    return f"ended with exit code {code}"


def _engine(settings: Settings, world: Path, announce: int) -> NoReturn:
    """The engine, from its fork to its end."""
    code = 1
    try:
        from mpi4py import MPI

        rank = MPI.COMM_WORLD.Get_rank()
        os.write(announce, json.dumps({"rank": rank}).encode())
        os.close(announce)
        _serve(settings, world, rank, MPI)
        code = 0
    except SystemExit as exc:
        code = int(exc.code or 0) if not isinstance(exc.code, str) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _serve(settings: Settings, world: Path, rank: int, MPI: Any) -> None:
    """Serves the kernel's requests until the engine is to stop."""
    from ipyparallel.engine.app import IPEngine
    from traitlets.config import Config

    _without_debugger()
    _with_coroutines()
    profile = _profile(settings, world, rank)
    config = Config()
    config.IPEngine.url_file = str(world / ENGINE)
    config.IPEngine.wait_for_url_file = START_S
    config.IPEngine.timeout = START_S
    config.IPEngine.enable_nanny = False  # the keeper does its work
    config.IPEngine.id = rank
    config.IPEngine.log_level = 40
    config.IPEngine.max_heartbeat_misses = 0  # the session ends ranks whose controller is gone
    config.ProfileDir.location = str(profile)
    config.HistoryManager.enabled = False

    class Engine(IPEngine):  # type: ignore[misc]
        def init_signal(self) -> None:
            super().init_signal()
            shown_errors.explain(self.kernel.shell)
            _watch_signals(settings, world, rank, self, (own, came))

    app = Engine.instance(config=config)
    app.user_ns = {
        "MPI": MPI, "comm": MPI.COMM_WORLD, "rank": rank, "size": MPI.COMM_WORLD.Get_size(),
    }  # fmt: skip
    own = frozenset(app.user_ns)
    came = _restored(world, rank, app.user_ns)
    app.initialize([])
    app.start()


def _without_debugger() -> None:
    """Spares 29 MB of 67: ipykernel has a debugger, which engines offer to nobody. Cells can still import debugpy."""
    modules: dict[str, Any] = sys.modules
    modules["debugpy"] = None
    with suppress(ImportError):  # before version 6
        importlib.import_module("ipykernel.debugger")
    del modules["debugpy"]


class _NoThread:
    """Stands for the thread that an engine's kernel does not have."""

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


def _with_coroutines() -> None:
    """Lets cells use ``await``: ipykernel 7 asks a thread that ipyparallel 9 does not give it, and then never answers."""
    from ipyparallel.engine.kernel import IPythonParallelKernel

    if "shell_channel_thread" in IPythonParallelKernel.class_traits():
        IPythonParallelKernel.shell_channel_thread = _NoThread()
        IPythonParallelKernel._supports_kernel_subshells = False


def _profile(settings: Settings, world: Path, rank: int) -> Path:
    """A folder for IPython, on this node where the session's process is."""
    own = Path(settings.sockets)
    folder = (own if own.is_dir() else world) / f"rank-{rank}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _restored(world: Path, rank: int, names: dict[str, Any]) -> frozenset[str]:
    """Loads the variables that an earlier world has left for this rank; their names."""
    before, own = read_json(world / WORLD).get("restore"), frozenset(names)
    if before and (lost := variables.restore(Path(before, f"rank-{rank}.pickle"), names)):
        print(f"rank {rank}: {lost}", file=sys.stderr)
    return frozenset(names) - own


def _watch_signals(
    settings: Settings,
    world: Path,
    rank: int,
    app: Any,
    given: tuple[frozenset[str], frozenset[str]],
) -> None:
    """Writes variables on SIGUSR1 and SIGUSR2; on SIGTERM too, before the rank ends.

    Args:
        given: names that every rank has from the start, and those that were restored, which IPython hides like them.
    """
    own, restored = given
    session, who = Path(settings.folder), f"rank-{rank}"

    def save_all() -> None:
        if app.kernel is not None:
            shell = app.kernel.shell
            hidden = own | (set(shell.user_ns_hidden) - restored)
            variables.save(world / VARIABLES, who, shell.user_ns, hidden)

    def save_named() -> None:
        if app.kernel is not None:
            variables.save_named(session, who, app.kernel.shell.user_ns)

    def end() -> None:
        try:
            if variables.are_left(session, world):
                save_named()
        finally:
            signals.die(signal.SIGTERM)

    variables.prepare()
    # A loop that waits for a coroutine sleeps on after the handler of SIGINT has asked for its end.
    loop = asyncio.get_event_loop()

    def wake() -> None:
        loop.call_soon_threadsafe(lambda: None)

    signals.follow(
        {signal.SIGUSR1: save_named, signal.SIGUSR2: save_all, signal.SIGTERM: end}, wake
    )


if __name__ == "__main__":
    main()
