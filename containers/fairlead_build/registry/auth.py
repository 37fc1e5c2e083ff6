"""Logins to registries: from the files that ``podman login``, ``docker login`` and
``apptainer registry login`` write, and from the helpers that these files name.

A password is held in memory only. It is never an argument of a command, never in a URL that is
shown, and never in an error. The docker SDK runs the helpers; of the files it knows Docker's only,
and no keys narrower than a host.

Source: containers-auth.json(5); docs.docker.com/reference/cli/docker/login, "Credential stores".
"""

from __future__ import annotations

import base64
import binascii
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead_build.registry.reference import HUB, Reference

_TOKEN_USER = "<token>"  # what helpers say instead of a name when the secret is a token
_HUB_KEYS = ("index.docker.io", "registry-1.docker.io", HUB)
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Credential:
    """A name with its password, or an identity token.

    Attributes:
        source: the file or helper it came from; for messages.
    """

    user: str
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)
    source: str = ""

    @property
    def basic(self) -> str:
        """The value of an ``Authorization`` header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be shown."""
        encoded = self.basic.partition(" ")[2] if self.password else ""
        return tuple(filter(None, (self.password, self.identity_token, encoded)))


def auth_files(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where credentials are looked for, first match wins; the files need not exist."""
    if named := environ.get("REGISTRY_AUTH_FILE"):
        return (Path(named),)
    home = Path(environ.get("HOME") or "/")
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}"
    config = environ.get("XDG_CONFIG_HOME") or str(home / ".config")
    docker = environ.get("DOCKER_CONFIG") or str(home / ".docker")
    apptainer = environ.get("APPTAINER_CONFIGDIR") or str(home / ".apptainer")
    return (
        Path(runtime, "containers", "auth.json"),
        Path(config, "containers", "auth.json"),
        Path(docker, "config.json"),
        Path(apptainer, "docker-config.json"),
    )


def find_credential(
    reference: Reference, environ: Mapping[str, str] = os.environ
) -> Credential | None:
    """What the auth files and their helpers know for ``reference``; None when they know nothing.

    Raises:
        FairleadError: a file or helper that ought to know cannot be used.
    """
    for path in auth_files(environ):
        content = _read(path, named="REGISTRY_AUTH_FILE" in environ)
        if content is None:
            continue
        for key in _keys(reference):
            if credential := _entry(content, key, path, environ):
                return credential
        store = content.get("credsStore")
        if isinstance(store, str) and store:
            for server in _servers(reference):
                if credential := _helped(store, server, path, environ):
                    return credential
    return None


def _read(path: Path, named: bool) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise fail("auth-file-larger-4-mib", path=path)
        content = bounded_json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if named:
            raise fail("auth-file-missing", path=path) from None
        return None
    except OSError as exc:
        raise fail("auth-file", path=path, reason=exc.strerror or str(exc)) from None
    except (ValueError, RecursionError):
        # The parser's message would quote the file.
        raise fail("auth-file-not-json", path=path) from None
    if not isinstance(content, dict):
        raise fail("auth-file-not-object", path=path)
    return content


def _keys(reference: Reference) -> Iterator[str]:
    """The names under which a file may know the reference, the narrowest first."""
    parts = reference.repository.split("/")
    for number in range(len(parts), 0, -1):
        yield f"{reference.host}/{'/'.join(parts[:number])}"
    yield reference.host


def _servers(reference: Reference) -> tuple[str, ...]:
    # Docker Hub's credentials are kept under the address of its first version.
    if reference.host == HUB:
        return ("https://index.docker.io/v1/", HUB)
    return (reference.host,)


def _entry(
    content: Mapping[str, Any], key: str, path: Path, environ: Mapping[str, str]
) -> Credential | None:
    helpers = _table(content, "credHelpers", path)
    for name, helper in helpers.items():
        if _plain(name) == key and isinstance(helper, str) and helper:
            return _helped(helper, name, path, environ)
    for name, value in _table(content, "auths", path).items():
        known = _decoded(value, path) if _plain(name) == key and isinstance(value, dict) else None
        if known:
            return known
    return None


def _table(content: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    value = content.get(name, {})
    if not isinstance(value, dict):
        raise fail("auth-file-entry-not-object", path=path, name=name)
    return value


def _plain(key: str) -> str:
    """``https://host/v1/`` and ``host`` are the same registry."""
    bare = key.partition("://")[2] if "://" in key else key
    host, _, rest = bare.partition("/")
    rest = rest.strip("/")
    if host in _HUB_KEYS:
        host = HUB
    return f"{host}/{rest}" if rest and rest not in ("v1", "v2") else host


def _decoded(value: Mapping[str, Any], path: Path) -> Credential | None:
    token = value.get("identitytoken")
    if isinstance(token, str) and token:
        return Credential(_TOKEN_USER, "", token, str(path))
    encoded = value.get("auth")
    if isinstance(encoded, str) and encoded:
        try:
            text = base64.b64decode(encoded, validate=True).decode("utf-8")
        except (binascii.Error, ValueError):
            raise fail("auth-file-not-base64", path=path) from None
        user, colon, password = text.partition(":")
        if not colon:
            raise fail("auth-file-not-name-password-base64", path=path)
        return Credential(user, password.rstrip("\0"), "", str(path))
    name, secret = value.get("username"), value.get("password")
    if isinstance(name, str) and isinstance(secret, str) and name:
        return Credential(name, secret, "", str(path))
    return None


def _helped(helper: str, server: str, path: Path, environ: Mapping[str, str]) -> Credential | None:
    """Asks ``docker-credential-HELPER``; the server goes to its standard input."""
    from docker.credentials import CredentialsNotFound, Store, StoreError

    if "/" in helper:
        raise fail("auth-file-not-name-credential-helper", path=path, helper=helper[:60])
    source = f"docker-credential-{helper}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is not installed is reported below
            answer = Store(helper, environment=dict(environ)).get(server)
        user, secret = answer["Username"], answer["Secret"]
    except CredentialsNotFound:
        return None
    except StoreError:
        # Its message is not repeated: a broken helper may print anything.
        raise fail("auth-helper-failed", source=source, path=path) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise fail("auth-helper-answer-not-json", source=source, path=path) from None
    if not (isinstance(user, str) and isinstance(secret, str)):
        raise fail("auth-helper-answer-holds-text", source=source, path=path)
    if user == _TOKEN_USER:
        return Credential(user, "", secret, source)
    return Credential(user, secret, "", source)
