"""``python3 -m fairlead.notebook.controller WORLD``: ipyparallel's controller of one world.

Connections are encrypted and authenticated by CurveZMQ; its keys are in the connection files.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from zmq.devices import ThreadMonitoredQueue

from fairlead.base import bounded_json
from fairlead.base.process import raise_open_files
from fairlead.notebook.settings import CLIENT, ENGINE, START_S, read_settings, write_private


class Unwatched(ThreadMonitoredQueue):
    """A queue of which the hub sees nothing: it would read every message, to keep results that nobody asks it for."""

    def connect_mon(self, addr: str) -> None:
        """Connects the hub to nothing."""


def main() -> None:
    from ipyparallel.controller.app import IPController
    from traitlets.config import Config

    class Controller(IPController):  # type: ignore[misc]
        def init_schedulers(self) -> None:
            self.mq_class = "fairlead.notebook.controller.Unwatched"
            super().init_schedulers()

    os.umask(0o077)
    raise_open_files()  # each engine has several connections
    world = Path(sys.argv[1])
    settings = read_settings(world.parent)
    config = Config()
    config.Controller.ip = settings.address
    config.Controller.location = settings.address
    config.Controller.enable_curve = True
    config.Controller.use_threads = True
    config.Controller.broadcast_scheduler_depth = 0
    config.Controller.db_class = "NoDB"
    config.Controller.log_level = 40
    config.TaskScheduler.scheme_name = "pure"
    config.Session.key = os.urandom(32).hex().encode()
    # An engine whose heart does not beat by then is dropped, and does not learn of it. The default of 30 s is too short where
    # engines share cores, or all import from a slow file system.
    config.Controller.registration_timeout = int(START_S)
    config.HeartMonitor.period = 1000
    config.HeartMonitor.max_heartmonitor_misses = 600  # keepers say at once who has died
    config.ProfileDir.location = str(world / "controller")
    app = Controller.instance(config=config)
    app.client_json_file, app.engine_json_file = CLIENT, ENGINE
    app.initialize([])
    for name in (CLIENT, ENGINE):
        made = Path(app.profile_dir.security_dir, name)
        known = bounded_json.loads(made.read_bytes())
        # Of a `pure` one, clients close the connection with each engine that comes, while another thread reads from it.
        known |= {"task_scheme": "none"} if "task_scheme" in known else {}
        write_private(world / name, json.dumps(known))
        made.unlink()
    app.start()


if __name__ == "__main__":
    main()
