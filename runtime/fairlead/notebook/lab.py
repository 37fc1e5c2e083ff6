"""JupyterLab in front of a session: the user's own, or the image's.

It listens on the loopback interface or a Unix socket. Its token is in a file that only the user can read, and on no
command line; a server that dies is started again with the same token at the same place.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from fairlead.base.errors import Finding, fail, warning
from fairlead.base.process import PYTHON, end_group
from fairlead.launch.node_history import short
from fairlead.notebook.session import Session, ends_again_and_again
from fairlead.notebook.settings import LAB, log_tail, read_json, write_private
from fairlead.schedulers.registry import ordered

_CONFIG, _LOG = "lab-config.json", "lab.log"
_END_S = 10.0
_LEAST_S = 2.0  # between two starts
_START_S = 300.0  # on a file system that is slow, its thousands of files take minutes
_ANSWER_S = 2.0
SPEC = "fairlead"


class Lab:
    """JupyterLab of a session.

    Args:
        image: start the image's own.
        port: on the loopback interface; 0 for a Unix socket in the session's folder.
    """

    def __init__(self, session: Session, *, image: bool, port: int, title: str):
        self._session, self._image, self._port = session, image, port
        self._process: subprocess.Popen[bytes] | None = None
        self._token, self._starts = secrets.token_hex(24), list[float]()
        self.is_ready = False  # its page has been seen
        self._socket = session.folder / "lab.sock"
        if port:
            self._port = _free(port)
        elif len(str(self._socket)) > 100:
            raise fail("notebook-socket", path=self._socket)
        _write_spec(session.folder, title)
        write_private(session.folder / _CONFIG, json.dumps(self._config()))
        _write_defaults(session.folder)

    def _config(self) -> Mapping[str, object]:
        server: dict[str, object] = {
            "open_browser": False,
            "allow_root": os.geteuid() == 0, "root_dir": str(Path.cwd()),
        }  # fmt: skip
        if self._port:
            server |= {"ip": "127.0.0.1", "port": self._port, "port_retries": 0}
        else:
            server |= {"sock": str(self._socket), "sock_mode": "0600"}
        return {
            "ServerApp": server,
            "IdentityProvider": {"token": self._token},
            "MappingKernelManager": {"default_kernel_name": SPEC},
            "MultiKernelManager": {"default_kernel_name": SPEC},
            "KernelSpecManager": {"ensure_native_kernel": False},
        }

    @property
    def url(self) -> str:
        """Where a browser of this machine finds it, with the token."""
        port = self._port or 8888
        return f"http://127.0.0.1:{port}/lab?token={self._token}"

    @property
    def tunnel(self) -> str:
        """The command line, for the user's own machine, that brings it there."""
        there = f"127.0.0.1:{self._port}" if self._port else str(self._socket)
        return shlex.join(["ssh", "-N", "-L", f"{self._port or 8888}:{there}", *way()])

    def start(self) -> None:
        """Starts it, or starts it again."""
        self._starts.append(time.monotonic())
        folder = self._session.folder
        words = ("-m", "fairlead.notebook.server", f"--config={folder / _CONFIG}")
        settings = [str(folder / "jupyter"), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
        env = {
            "JUPYTER_PATH": str(folder / "jupyter"), "JUPYTER_RUNTIME_DIR": str(folder / "jupyter" / "runtime"),
            "JUPYTER_PREFER_ENV_PATH": "1", "JUPYTER_CONFIG_PATH": os.pathsep.join(settings),
        }  # fmt: skip
        (folder / "jupyter" / "runtime").mkdir(mode=0o700, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        if self._image:
            self._process = self._session.container(("python3", *words), _LOG, env)
        else:
            with (folder / _LOG).open("ab") as stream:
                self._process = subprocess.Popen(
                    [*PYTHON, *words], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                    env={**os.environ, **env}, start_new_session=True,
                )  # fmt: skip
        shown = {
            "pid": self._process.pid,
            "url": self.url,
            "port": self._port,
            "socket": "" if self._port else str(self._socket),
        }
        write_private(folder / LAB, json.dumps(shown))

    def look(self) -> Finding | None:
        """Starts it again when it has died; its kernel lives on. Gives up, with a warning, what cannot be served."""
        if self._process is None:
            return None
        now = time.monotonic()
        code = self._process.poll()
        if code is not None and now - self._starts[-1] > _LEAST_S:
            if ends_again_and_again(self._starts):
                return self._given_up(f"it ends again and again, with code {code}")
            self.start()
        if self.is_ready:
            return None
        status = self._status()
        self.is_ready = 0 < status < 400
        if status >= 400:
            return self._given_up(f"its page is answered with HTTP {status}")
        if now - self._starts[0] > _START_S:
            return self._given_up(f"its page has not come within {_START_S:.0f} s")
        return None

    def _status(self) -> int:
        """What the server answers when it is asked for its page, by HTTP; 0 while it does not answer."""
        kind, address = (
            (socket.AF_INET, ("127.0.0.1", self._port))
            if self._port
            else (socket.AF_UNIX, str(self._socket))
        )
        with suppress(OSError, http.client.HTTPException), socket.socket(kind) as connected:
            connected.settimeout(_ANSWER_S)
            connected.connect(address)
            connection = http.client.HTTPConnection("localhost")
            connection.sock = connected
            connection.request("GET", "/lab", headers={"Authorization": f"token {self._token}"})
            return connection.getresponse().status
        return 0

    def _given_up(self, reason: str) -> Finding:
        self.end()
        self.is_ready = False
        log = self._session.folder / _LOG
        return warning("notebook-lab", log=log, reason=reason, tail=log_tail(log))

    def end(self) -> None:
        """Ends it."""
        if self._process is None:
            return
        end_group(self._process, _END_S)
        self._process = None
        for name in (LAB, _CONFIG):
            (self._session.folder / name).unlink(missing_ok=True)


def own_lab() -> bool:
    """Whether JupyterLab is installed next to fairlead."""
    return find_spec("jupyterlab") is not None


def _free(port: int) -> int:
    """The first port from this one on that nobody listens on."""
    for candidate in range(port, port + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", candidate))
                return candidate
    raise fail("notebook-port", port=port, last=port + 99)


def way(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The words by which ssh comes to this host: from a job's node, through the host that the job was submitted from."""
    import getpass

    user, here = getpass.getuser(), socket.gethostname()
    for scheduler in ordered():
        gate = environ.get(scheduler.host, "") if scheduler.host else ""
        if gate and environ.get(scheduler.job_variable) and short(gate) != short(here):
            return ["-J", f"{user}@{gate}", f"{user}@{here}"]
    return [f"{user}@{here}"]


def _write_spec(folder: Path, title: str) -> None:
    """The kernel of this session, for the servers that look into its folder."""
    spec = {
        "argv": [], "display_name": title, "language": "python", "interrupt_mode": "message",
        "metadata": {
            "debugger": False,
            "kernel_provisioner": {"provisioner_name": "fairlead-session", "config": {"folder": str(folder)}},
        },
    }  # fmt: skip
    place = folder / "jupyter" / "kernels" / SPEC
    place.mkdir(mode=0o700, parents=True)
    write_private(place / "kernel.json", json.dumps(spec, indent=1))


def _write_defaults(folder: Path) -> None:
    """Settings of JupyterLab, which the user's own override: a compute node reaches neither its news nor its updates."""
    place = folder / "jupyter" / "labconfig"
    place.mkdir(mode=0o700)
    notification = {"fetchNews": "false", "checkForUpdates": False}
    defaults = {"@jupyterlab/apputils-extension:notification": notification}
    write_private(place / "default_setting_overrides.json", json.dumps(defaults))


def shown(folder: Path) -> dict[str, object]:
    """Where the JupyterLab of a session listens; empty without one."""
    return read_json(folder / LAB)
