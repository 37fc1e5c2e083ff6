"""Jupyter's way to kernels of fairlead: ``fairlead-session`` is one that runs, ``fairlead`` starts one in a job.

Source: jupyter_client, docs/provisioning.rst.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_client.provisioning import KernelProvisionerBase
from traitlets import Dict, Float, Integer, List, Unicode

from fairlead.base.process import PYTHON
from fairlead.notebook.settings import ENDED, KERNEL, RUN, SERVER, STATE, order, read_json

VARIABLE = "FAIRLEAD_NOTEBOOK_OPTIONS"  # further ones of `fairlead notebook`
_LOOK_S = 0.05


class SessionProvisioner(KernelProvisionerBase):  # type: ignore[misc]
    """The kernel of a session that runs. Shutting it down leaves it; restarting it replaces its process."""

    folder = Unicode("", config=True, help="The session's folder.")
    start_s = Float(60.0, config=True, help="Seconds for the kernel to be there.")
    _run = 0

    @property
    def _path(self) -> Path:
        return Path(self.folder)

    @property
    def has_process(self) -> bool:
        return self._run > 0

    async def poll(self) -> int | None:
        """None while the run of the kernel that was launched or found goes on, and the server holds on to it."""
        if not self._run or self._left or (self._path / ENDED).exists() or self._gone():
            return 0
        return None if read_json(self._path / RUN).get("run") == self._run else 0

    def _gone(self) -> bool:
        """Whether the session's process was killed; of another machine's, its folder has to say so."""
        server = read_json(self._path / SERVER)
        if server.get("host") != socket.gethostname():
            return not server
        try:
            os.kill(int(server["pid"]), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    async def wait(self) -> int | None:
        while await self.poll() is None:
            await asyncio.sleep(_LOOK_S)
        self._run = 0
        return 0

    _left = False  # the server has let go of it

    async def shutdown_requested(self, restart: bool = False) -> None:
        self._left = not restart

    async def send_signal(self, signum: int) -> None:
        """Nothing: interrupts come as messages, and the kernel outlives the server."""

    async def kill(self, restart: bool = False) -> None:
        if restart and self._run:
            order(self._path, do="kernel", run=self._run)

    async def terminate(self, restart: bool = False) -> None:
        await self.kill(restart)

    async def cleanup(self, restart: bool = False) -> None:
        if not restart:
            self._run = 0

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        ready: dict[str, Any] = await super().pre_launch(**{**kwargs, "cmd": []})
        return ready

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        """The connection of the kernel, once that answers."""
        await self._ready()
        known = read_json(self._path / KERNEL)
        if not known:
            raise RuntimeError(f"the session {self.folder} is over")
        self._run, self._left = int(read_json(self._path / RUN)["run"]), False
        connection_info = {
            **known,
            "key": known["key"].encode(),
            "ip": self._linked(str(known["ip"])),
        }
        self.connection_info = connection_info
        return connection_info

    def _linked(self, sockets: str) -> str:
        """Links to the kernel's sockets: Jupyter removes those of a kernel that it lets go of."""
        own = Path(sockets).with_name(f"server-{secrets.token_hex(4)}")
        for number in range(1, 6):
            Path(f"{own}-{number}").symlink_to(f"{sockets}-{number}")
        return str(own)

    async def _ready(self) -> None:
        until = time.monotonic() + self.start_s
        while time.monotonic() < until:
            if (self._path / ENDED).exists():
                why = (self._path / ENDED).read_text("utf-8")
                raise RuntimeError(f"the session {self._path.name} is over: {why}")
            started, state = read_json(self._path / RUN), read_json(self._path / STATE)
            if started and state.get("run") == started["run"]:
                return
            await asyncio.sleep(_LOOK_S)
        raise RuntimeError(
            f"the kernel of {self._path.name} did not start within {self.start_s:.0f} s: see {self._path}/kernel.log"
        )

    def get_shutdown_wait_time(self, recommended: float = 5.0) -> float:
        return recommended

    async def get_provisioner_info(self) -> dict[str, Any]:
        known: dict[str, Any] = await super().get_provisioner_info()
        return {**known, "folder": self.folder, "run": self._run}

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        await super().load_provisioner_info(provisioner_info)
        self.folder, self._run = provisioner_info["folder"], int(provisioner_info["run"])


class JobProvisioner(SessionProvisioner):
    """A session of its own for each kernel, by `fairlead notebook`: on this machine, or in a job of its scheduler."""

    image = Unicode("", config=True, help="IMAGE of `fairlead notebook`.")
    ranks = Integer(0, config=True, help="0 for one on each node of the job, or one.")
    arguments = List(Unicode(), config=True, help="Further options, such as `-N 2 --time 1h`.")
    environment = Dict(config=True, help="Variables for `fairlead notebook`.")
    start_s = Float(600.0, config=True, help="Seconds in the queue and until the kernel is there.")
    _process: subprocess.Popen[bytes] | None = None

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._begin(kwargs.get("env") or dict(os.environ), kwargs.get("cwd"))
        return await super().launch_kernel(cmd, **kwargs)

    def _begin(self, env: dict[str, str], cwd: str | None) -> None:
        from fairlead.notebook.session import top

        name = f"kernel-{secrets.token_hex(4)}"
        env = {**env, **self.environment}
        self.folder = str(top(env) / name)
        log = top(env) / f"{name}.log"
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        words = [
            *PYTHON, "-m", "fairlead", "notebook", self.image, "--lab", "none", "--name", name,
            *(["-n", str(self.ranks)] if self.ranks else []),
            *self.arguments,
            *shlex.split(env.get(VARIABLE, "")),
        ]  # fmt: skip
        with log.open("xb") as stream:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        self._log = log

    async def _ready(self) -> None:
        until = time.monotonic() + self.start_s
        while not (self._path / RUN).exists() and time.monotonic() < until:
            if self._process and self._process.poll() is not None:
                raise RuntimeError(self._log.read_text("utf-8", errors="replace").strip())
            await asyncio.sleep(_LOOK_S)
        await super()._ready()

    def _gone(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    async def cleanup(self, restart: bool = False) -> None:
        """Ends the session with its kernel: nobody else has it."""
        if not restart and self._process and self._process.poll() is None:
            with suppress(OSError):
                order(self._path, do="stop", why="its kernel was shut down")
        await super().cleanup(restart)
