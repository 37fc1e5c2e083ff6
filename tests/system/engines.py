"""The real ``podman system service`` on a socket of its own: what the docker SDK speaks to."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
from tests.system.podman import Podman, podman


@dataclass(frozen=True)
class Service:
    """A running service.

    Attributes:
        podman: the command line on the same store.
        environ: what names its socket to others.
        process: to be ended by a test that wants to know what happens then.
    """

    podman: Podman
    environ: dict[str, str]
    process: subprocess.Popen[bytes]


@contextmanager
def service(plain_http: str = "") -> Iterator[Service]:
    """Starts Podman's service; it answers when the block begins.

    Args:
        plain_http: a registry's host that it may speak plain HTTP to.
    """
    with podman() as own:
        conf = own.folder / "registries.conf"
        conf.write_text(
            f'[[registry]]\nlocation = "{plain_http}"\ninsecure = true\n' if plain_http else ""
        )
        environ = {**own.environ, "CONTAINERS_REGISTRIES_CONF": str(conf)}
        place = own.folder / "podman.sock"
        address = f"unix://{place}"
        with (own.folder / "service.log").open("wb") as log:
            process = subprocess.Popen(
                own.argv("system", "service", "--time=0", address),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait(place, process, own.folder / "service.log")
            yield Service(own, {"DOCKER_HOST": address}, process)
        finally:
            process.terminate()
            process.wait(20)


def _wait(place: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            docker.APIClient(base_url=f"unix://{place}", timeout=5).ping()
        except (docker.errors.DockerException, OSError):
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"podman system service does not start: {log.read_text()}")
