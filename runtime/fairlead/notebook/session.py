"""The side that starts a session: its folder, its controller, kernel and ranks, and how it ends."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.base import session_folders
from fairlead.base.comm_names import TIMELINE
from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import cache_dir, state_dir
from fairlead.base.process import end_group
from fairlead.bridge.network import address
from fairlead.launch import unpack
from fairlead.launch.launch import terminal_line
from fairlead.launch.node_history import short
from fairlead.notebook import worlds
from fairlead.notebook.overlay import Overlay
from fairlead.notebook.settings import (
    ENDED,
    KERNEL,
    LET_GO,
    NAMES,
    ORDERS,
    OUTCOME,
    PROOF,
    RUN,
    SAVE,
    SAVED_AT,
    SERVER,
    STATE,
    TRACE,
    WORLD,
    Settings,
    log_tail,
    read_json,
    write_private,
    write_settings,
)
from fairlead.session.model import Prepared
from fairlead.swap import staging
from fairlead.swap.model import Bind

_LOOK_S = 0.05
_END_S = 10.0  # for a process to end
_SAVE_S = 90.0  # for variables to be saved; the kernel waits 60 s for its ranks
_BEFORE_S, _SHARE = 120.0, 0.1  # of a job, before whose end they are saved; the shorter of both
_TOO_OFTEN, _RECENT_S = 5, 60.0  # starts within this time
_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


@dataclass(frozen=True)
class Wanted:
    """How a session is to be.

    Attributes:
        name: empty for the image's.
        idle_s: it ends when no cell has run for so long; 0 for never.
        interfaces: that ranks of other nodes reach the kernel by; empty for the site's.
        workdir: of cells, in the container.
        env: variables of the container.
        limit_s: how long the start-up of ranks may make no progress; None for the site's.
        ends_s: seconds until the job's time limit; 0 where that is unknown.
        hosts: nodes of the job that the ranks run in; empty for this machine.
        timeline: ranks record one, which `%ranks timeline` draws.
    """

    name: str = ""
    idle_s: float = 0.0
    interfaces: tuple[str, ...] = ()
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    limit_s: float | None = None
    ends_s: float = 0.0
    hosts: tuple[str, ...] = ()
    timeline: bool = False


def top(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of all sessions."""
    return state_dir(environ) / "notebook"


def find(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of a session that runs.

    Args:
        name: empty for the only one.
    Raises:
        FairleadError: there is none, or there are several.
    """
    living = [f for f in every(environ) if not (f / ENDED).exists()]
    if name:
        folder = top(environ) / name
        if folder in living:
            return folder
        names = ", ".join(f.name for f in living) or "none"
        raise fail("notebook-no-session", name=name, names=names)
    if len(living) != 1:
        names = ", ".join(f.name for f in living) or "none"
        raise fail("notebook-which", names=names)
    return living[0]


def every(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders of all sessions, the latest first; one whose process was killed is marked as ended."""
    folder = top(environ)
    folders = [f for f in folder.iterdir() if (f / SERVER).exists()] if folder.is_dir() else []
    for session_folder in folders:
        server = read_json(session_folder / SERVER)
        if not (session_folder / ENDED).exists() and server.get("host") == socket.gethostname():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(server["pid"]), 0)
                continue
            write_private(session_folder / ENDED, "its `fairlead notebook` was killed")
    return sorted(folders, key=lambda f: (f / SERVER).stat().st_mtime, reverse=True)


class Session:
    """A session of this process: a context manager around its folder.

    Args:
        overlay: packages that the image lacks.
    """

    def __init__(self, wanted: Wanted, prepared: Prepared, ranks: int, overlay: Overlay):
        self._wanted, self._prepared, self._overlay = wanted, prepared, overlay
        self._ranks = ranks
        self.folder, self._sockets = Path(), Path()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._world = worlds.World(0, Path())
        self._kernel_run, self._kernel_starts = 0, [0.0]
        self.saved = ""  # what was saved last, in words
        self.unsaved: dict[str, str] = {}  # why nothing could be written, by process
        self.extra: list[Callable[[], None]] = []  # called at each look

    def __enter__(self) -> Session:
        folder = top()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        session_folders.forget_old(folder, ENDED)
        self.folder = _new_folder(
            folder, self._wanted.name or session_folders.name_for(self._prepared.image.name)
        )
        (self.folder / ORDERS).mkdir(mode=0o700)
        self._sockets = Path(tempfile.mkdtemp(prefix="fairlead-", dir="/tmp"))
        self.settings = self._settings()
        write_settings(self.settings)
        self._write_kernel()
        self._write_server()
        return self

    def __exit__(self, kind: Any, exc: BaseException | None, trace: Any) -> None:
        try:
            self._end()
        finally:
            if not (self.folder / ENDED).exists():
                write_private(self.folder / ENDED, _reason(exc))
            (self.folder / KERNEL).unlink(missing_ok=True)
            shutil.rmtree(self._sockets, ignore_errors=True)

    def _settings(self) -> Settings:
        site = tuple(self._prepared.plan.site.fabric.interfaces)
        interfaces = self._wanted.interfaces or (site if self._elsewhere else ())
        return Settings(
            str(self.folder), str(self._sockets), self._ranks, self._prepared.image.name, secrets.token_hex(32),
            address(interfaces) if self._elsewhere or interfaces else "127.0.0.1", self._wanted.idle_s,
            timeline=self._wanted.timeline,
        )  # fmt: skip

    @property
    def cost(self) -> str:
        """What the session's nodes cost an hour, in words; empty where the site's profile does not say it."""
        plan = self._prepared.plan
        shape = plan.request.shape
        nodes = shape.nodes or len(self._wanted.hosts) or len(shape.hosts) or 1
        return plan.site.scheduler.hourly(nodes, shape.partition)

    @property
    def _elsewhere(self) -> bool:
        """Whether ranks may run on other nodes than this one."""
        shape = self._prepared.plan.request.shape
        nodes = {short(host) for host in (*self._wanted.hosts, *(shape.hosts or ()))}
        return (shape.nodes or 0) > 1 or bool(nodes - {short(socket.gethostname())})

    def _write_kernel(self) -> None:
        """The kernel's connection file: Unix sockets in a folder that only the user can enter."""
        info = {name: number for number, name in enumerate(_PORTS, 1)}
        shown = {
            **info, "transport": "ipc", "ip": str(self._sockets / "kernel"), "key": secrets.token_hex(32),
            "signature_scheme": "hmac-sha256", "kernel_name": "fairlead",
        }  # fmt: skip
        write_private(self.folder / KERNEL, json.dumps(shown))

    def _write_server(self) -> None:
        shown = {
            "name": self.folder.name, "image": self._prepared.image.name, "fairlead": __version__, "pid": os.getpid(),
            "host": socket.gethostname(), "started": time.time(), "ranks": self._ranks,
        }  # fmt: skip
        write_private(self.folder / SERVER, json.dumps(shown))

    @property
    def _env(self) -> dict[str, str]:
        """Variables of every container; the user's PYTHONPATH is behind the overlay's."""
        own, given = self._overlay.env, self._wanted.env
        paths = (own.get("PYTHONPATH"), given.get("PYTHONPATH"))
        path = ":".join(filter(None, paths))
        return {**own, **given, **({"PYTHONPATH": path} if path else {})}

    def _binds(self, here: bool) -> tuple[Bind, ...]:
        """The folders that a container sees, on this node or on any."""
        own = [str(self.folder), *([str(self._sockets)] if here else [])]
        return (*(Bind(path, path) for path in own), *self._overlay.binds)

    def container(
        self, command: Sequence[str], log: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a command in the image on this node, without a launcher.

        Args:
            log: name of the file in the session's folder that takes its output.
        """
        env = {**self._env, **(env or {})}
        line = terminal_line(
            self._prepared.plan,
            command,
            self._wanted.workdir,
            env,
            self._binds(here=True),
            terminal=False,
        )
        line.write_files()
        with (self.folder / log).open("ab") as stream:
            return subprocess.Popen(
                line.argv, env=line.environment(os.environ), stdin=subprocess.DEVNULL, stdout=stream,
                stderr=stream, start_new_session=True,
            )  # fmt: skip

    # From its start to its end.

    def run(self, ready: Callable[[], None], on_proof: Callable[[str], None]) -> None:
        """Starts everything, and serves until the session is stopped.

        Args:
            ready: called once the kernel can be reached.
            on_proof: called with what was proved of each world.
        Raises:
            FairleadError: the first ranks could not be started, or the kernel dies again and again.
        """
        staging.ensure(self._prepared.plan, cache_dir())
        unpack.ensure(self._prepared.plan, cache_dir())
        warned: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, frame: warned.append(number))
        left = self._wanted.ends_s - min(_BEFORE_S, _SHARE * self._wanted.ends_s)
        save_at = time.monotonic() + left if left else 0.0
        self._start_world("")
        self._start_kernel()
        shown, proved = False, 0
        while True:
            time.sleep(_LOOK_S)
            for look in self.extra:
                look()
            if save_at and time.monotonic() > save_at:
                save_at = 0.0
                warned.append(0)
            if warned:  # the scheduler's SIGUSR1, before the end of its job
                warned.clear()
                self.save()
            if not shown and (self.folder / STATE).exists():
                shown = True
                ready()
            if proved < self._world.number and (self._world.folder / PROOF).exists():
                proved = self._world.number
                on_proof(str(read_json(self._world.folder / PROOF)["line"]))
            self._look_at_kernel()
            self._look_at_world()
            if why := self._obey():
                write_private(self.folder / ENDED, why)
                return

    def _obey(self) -> str:
        """Does what has been ordered; why the session is to end, empty while it is not."""
        for path in sorted((self.folder / ORDERS).glob("*.json")):
            asked = read_json(path)
            path.unlink(missing_ok=True)
            if asked.get("do") == "stop":
                return str(asked.get("why") or "it was stopped")
            if asked.get("do") == "restart" and asked.get("from") == self._world.number:
                self._world.end(saved=True)
                self._end_process("controller")
                self._start_world(str(asked.get("restore") or ""))
            if asked.get("do") == "kernel" and asked.get("run") == self._kernel_run:
                self._end_process("kernel")
        return ""

    def _start_world(self, restore: str) -> None:
        number = self._world.number + 1
        folder = self.settings.world(number)
        work = Path(tempfile.mkdtemp(prefix=".world-", dir=self.folder))
        write_private(work / WORLD, json.dumps({"number": number, "restore": restore}))
        work.rename(folder)  # the kernel looks for it by its name
        module = ("python3", "-m", "fairlead.notebook.controller", str(folder))
        self._processes["controller"] = self.container(module, "controller.log")
        self._world = worlds.World(number, folder)
        recorded = {TIMELINE: str(folder / TRACE)} if self._wanted.timeline else {}
        self._world.start(
            self._prepared, self._ranks, self._binds(here=not self._elsewhere), {**self._env, **recorded},
            workdir=self._wanted.workdir, limit_s=self._wanted.limit_s,
        )  # fmt: skip

    def _look_at_world(self) -> None:
        if (
            self._world.ended()
            and self._world.number == 1
            and not (self._world.folder / PROOF).exists()
        ):
            outcome = read_json(self._world.folder / OUTCOME)
            raise worlds.failure(outcome, self._world.folder)

    def _start_kernel(self) -> None:
        module = ("python3", "-m", "fairlead.notebook.kernel", str(self.folder))
        self._kernel_starts.append(time.monotonic())
        self._kernel_run += 1
        (self.folder / LET_GO).unlink(missing_ok=True)
        write_private(self.folder / RUN, json.dumps({"run": self._kernel_run}))
        self._processes["kernel"] = self.container(module, "kernel.log")

    def _look_at_kernel(self) -> None:
        if self._processes["kernel"].poll() is None:
            return
        if ends_again_and_again(self._kernel_starts):
            log = self.folder / "kernel.log"
            raise fail("notebook-kernel", log=log, tail=log_tail(log))
        for left in self._sockets.glob("kernel-*"):
            left.unlink(missing_ok=True)
        self._start_kernel()

    def save(self) -> bool:
        """Has the kernel save what it is asked to save, and waits for it; whether it has."""
        kernel = self._processes.get("kernel")
        if kernel is None or kernel.poll() is not None:
            return False
        (self.folder / SAVED_AT).unlink(missing_ok=True)
        write_private(self.folder / SAVE, "")
        until = time.monotonic() + _SAVE_S
        while not (self.folder / SAVED_AT).exists() and time.monotonic() < until:
            if kernel.poll() is not None:
                return False
            time.sleep(_LOOK_S)
        done = read_json(self.folder / SAVED_AT)
        self.saved, self.unsaved = str(done.get("text", "")), dict(done.get("failed", {}))
        if not done and read_json(self.folder / NAMES).get("names"):
            self.unsaved = {"kernel": f"it did not answer within {_SAVE_S:.0f} s"}
        return bool(done)

    def _end(self) -> None:
        saved = False
        with suppress(OSError):
            saved = self.save()
        for name in list(self._processes):
            if name != "controller":
                self._end_process(name)
        self._world.end(saved=saved)
        self._end_process("controller")

    def _end_process(self, name: str) -> None:
        process = self._processes.pop(name, None) if name != "kernel" else self._processes.get(name)
        if process is None:
            return
        if name == "kernel":
            write_private(self.folder / LET_GO, "")
        end_group(process, _END_S)


def ends_again_and_again(starts: Sequence[float]) -> bool:
    """Whether a process that has ended is not worth another start.

    Args:
        starts: when it was started, by the monotonic clock.
    """
    now = time.monotonic()
    return sum(now - start < _RECENT_S for start in starts) >= _TOO_OFTEN


def _reason(exc: BaseException | None) -> str:
    if isinstance(exc, FairleadError):
        finding = exc.findings[0]
        return "; ".join(filter(None, (finding.what, finding.where, finding.why)))
    return (
        "it was interrupted"
        if isinstance(exc, KeyboardInterrupt)
        else repr(exc or "it was stopped")
    )


def _new_folder(top: Path, name: str) -> Path:
    """A folder of that name.

    Raises:
        FairleadError: a session of that name is running, or it is not a name.
    """
    if not session_folders.is_name(name):
        raise fail("notebook-name", name=name)
    if top / name in every() and not (top / name / ENDED).exists():
        raise fail("notebook-name-taken", name=name)
    return session_folders.renewed(top, name)
