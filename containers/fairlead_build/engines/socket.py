"""Docker's or Podman's socket: which one there is, and its failures as findings.

``store.py`` gives images to the engine behind it; nothing here starts an engine.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, fail
from fairlead_build.registry.problems import plain

_PING_S = 10
# Between two lines of the engine: it is silent while it unpacks a layer of gigabytes.
_SILENCE_S = 1800


@dataclass(frozen=True)
class Engine:
    """An engine that answers.

    Attributes:
        address: of its socket, as ``$DOCKER_HOST`` has it.
        name: e.g. ``Podman Engine 4.3.1``.
        client: the SDK's ``docker.APIClient``.
    """

    address: str
    name: str
    client: Any


def addresses(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Where an engine may listen, the first that is there counts. ``$DOCKER_HOST`` stands alone."""
    if named := environ.get("DOCKER_HOST"):
        return (named,)
    runtime = environ.get("XDG_RUNTIME_DIR")
    own = [f"{runtime}/podman/podman.sock"] if runtime else []
    return tuple(
        f"unix://{path}" for path in (*own, "/run/podman/podman.sock", "/var/run/docker.sock")
    )


@contextmanager
def connected(again: str, environ: Mapping[str, str] = os.environ) -> Iterator[Engine]:
    """The engine of this machine, while the block lasts.

    Args:
        again: the command to run once the engine is there.
    Raises:
        FairleadError: there is none, or it does not answer.
    """
    import docker
    import requests

    tried = addresses(environ)
    listening = tried if environ.get("DOCKER_HOST") else filter(_is_socket, tried)
    if (address := next(iter(listening), "")) == "":
        shown = ", ".join(address.removeprefix("unix://") for address in tried)
        raise fail("engine-missing", tried=shown, again=again)
    broken = (requests.RequestException, OSError, ValueError, AttributeError, LookupError)
    with ExitStack() as stack:
        try:
            client = docker.APIClient(base_url=address, version="auto", timeout=_PING_S)
            stack.callback(client.close)
            about = client.version()
            parts = about.get("Components") or [{}]
            name = f"{parts[0].get('Name') or 'Engine'} {about.get('Version', '')}".strip()
        except (docker.errors.DockerException, *broken) as exc:
            raise _silent(address, _reason(exc), again, environ) from None
        client.timeout = _SILENCE_S
        yield Engine(address, plain(name), client)


@contextmanager
def asking(engine: Engine, doing: str, again: str, secrets: tuple[str, ...] = ()) -> Iterator[None]:
    """What the engine refuses, or a connection that breaks, becomes a finding.

    Args:
        doing: what is asked, after "cannot": ``load the image``.
        secrets: what must not be repeated.
    Raises:
        FairleadError: in place of the SDK's own errors.
    """
    import docker
    import requests
    import urllib3

    try:
        yield
    except docker.errors.APIError as exc:
        raise refused(engine, doing, str(exc.explanation or exc), again, secrets) from None
    except (
        docker.errors.DockerException,
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        ConnectionError,
        ValueError,  # an answer that is cut in the middle of its JSON
    ) as exc:
        reason = plain(_reason(exc), secrets)
        raise fail(
            "engine-broke-off-midway", engine=engine, doing=doing, reason=reason, again=again
        ) from None


def refused(
    engine: Engine, doing: str, why: str, again: str, secrets: tuple[str, ...] = ()
) -> FairleadError:
    """The engine refused; ``why`` is its message."""
    reason = plain(why, secrets)
    remedy = f"fix what it reports, then `{again}`"
    if "HTTP response to HTTPS client" in reason:
        remedy = f"name the registry with `insecure = true` in registries.conf(5), then `{again}`"
    elif "no space left" in reason:
        remedy = f"podman system prune (or docker system prune), then `{again}`"
    return fail("engine-refused", engine=engine, doing=doing, reason=reason, remedy=remedy)


def _is_socket(address: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(address.removeprefix("unix://")).stat().st_mode)
    except OSError:
        return False


def _silent(address: str, why: str, again: str, environ: Mapping[str, str]) -> FairleadError:
    remedy = "systemctl --user restart podman.socket (or: podman system service --time=0 &)"
    if "ermission" in why:
        remedy = "use an engine of your own: systemctl --user start podman.socket"
    given: dict[str, Any] = {"address": address, "why": why, "remedy": remedy, "again": again}
    named = "DOCKER_HOST" in environ
    return fail("engine-silent-docker-host" if named else "engine-silent", **given)


def _reason(exc: BaseException) -> str:
    """The innermost cause: the SDK wraps it three times."""
    text = str(exc)
    link: BaseException | None = exc
    while link is not None:
        if isinstance(link, OSError) and link.strerror:
            text = link.strerror
        link = link.__cause__ or link.__context__
    return plain(text) or type(exc).__name__
