"""The side that starts a session: its folder, its ranks, and how it ends."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.base import session_folders
from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.bridge import sessions
from fairlead.bridge.settings import (
    CERTIFICATE,
    ENDED,
    ENDPOINTS,
    KEY,
    NEEDED,
    RANKS,
    SERVER,
    TOKEN,
    Settings,
    write_private,
)
from fairlead.image.open import Image
from fairlead.launch import launch as launching
from fairlead.proof.verdict import Proof
from fairlead.session.model import Launched, LaunchOptions, Prepared
from fairlead.session.run import launch_proved
from fairlead.swap.model import Bind

SETTINGS = "settings.json"
_LOOK_S = 0.05


def check_image(image: Image) -> None:
    """
    Raises:
        FairleadError: exit code 121; the image has not what ranks of a session need.
    """
    if missing := image.lacks(NEEDED):
        raise fail("bridge-lacks", image=image, missing=", ".join(missing))


@dataclass(frozen=True)
class Wanted:
    """How a session is to be.

    Attributes:
        interfaces: network interfaces to listen on; empty for the site's.
    """

    name: str = ""
    interfaces: tuple[str, ...] = ()
    tls: bool = False
    memory: float = 0.6
    keep_s: float = 600.0


class Server:
    """A session of this process: a context manager around its folder.

    Args:
        environ: whose ``XDG_STATE_HOME`` has the folder.
    """

    def __init__(self, wanted: Wanted, image: str, environ: Mapping[str, str] = os.environ):
        self._wanted, self._image = wanted, image
        self._environ = environ
        self.folder = Path()

    def __enter__(self) -> Server:
        top = sessions.top(self._environ)
        top.mkdir(parents=True, exist_ok=True, mode=0o700)
        session_folders.forget_old(top, ENDED)
        self.folder = _new_folder(top, self._wanted.name or session_folders.name_for(self._image))
        write_private(self.folder / TOKEN, secrets.token_hex(32))
        if self._wanted.tls:
            certificate, key = certified()
            write_private(self.folder / CERTIFICATE, certificate)
            write_private(self.folder / KEY, key)
        self._write_server(ranks=0)
        return self

    def __exit__(self, kind: Any, exc: BaseException | None, trace: Any) -> None:
        if not (self.folder / ENDED).exists():
            with suppress(OSError):
                write_private(self.folder / ENDED, _reason(exc))
        for name in (TOKEN, KEY):
            (self.folder / name).unlink(missing_ok=True)

    def _write_server(self, **more: Any) -> None:
        shown = {
            "name": self.folder.name, "image": self._image, "fairlead": __version__, "pid": os.getpid(),
            "host": socket.gethostname(), "started": time.time(), "tls": self._wanted.tls, **more,
        }  # fmt: skip
        write_private(self.folder / SERVER, json.dumps(shown))

    def settings(self, prepared: Prepared) -> Settings:
        """What the ranks are given.

        Raises:
            FairleadError: ranks on several nodes would listen on a network that nobody has named as trusted.
        """
        wanted, shape = self._wanted, prepared.plan.request.shape
        several = max(shape.nodes or 0, len(set(shape.hosts or ()))) > 1
        interfaces = wanted.interfaces or (
            tuple(prepared.plan.site.fabric.interfaces) if several else ()
        )
        if several and not interfaces and not wanted.tls:
            raise fail("bridge-untrusted", nodes=shape.nodes)
        loopback = not (several or interfaces or wanted.tls)
        return Settings(
            str(self.folder), self.folder.name, interfaces, loopback, wanted.tls, wanted.memory, wanted.keep_s,
        )  # fmt: skip

    def serve(
        self, prepared: Prepared, ranks: int, options: LaunchOptions, ready: Callable[[], None]
    ) -> Launched:
        """Starts the ranks, proves them, and waits for the end of the session.

        Args:
            ready: called when clients can connect.
        Raises:
            FairleadError: as :func:`fairlead.session.run.launch_proved`; or the ranks have ended by themselves.
        """
        write_private(self.folder / SETTINGS, json.dumps(asdict(self.settings(prepared))))
        threads = _threads(prepared, ranks)
        self._write_server(ranks=ranks, cores=int(threads["OMP_NUM_THREADS"]) * ranks)
        proved, over = threading.Event(), threading.Event()

        show = options.on_proof

        def on_proof(proof: Proof) -> None:
            show(proof)
            if proof.holds:
                proved.set()

        def publish() -> None:
            while not over.wait(_LOOK_S):
                if proved.is_set() and (self.folder / RANKS).exists():
                    (self.folder / RANKS).rename(self.folder / ENDPOINTS)
                    ready()
                    return

        threading.Thread(target=publish, name="publish", daemon=True).start()
        bind = Bind(str(self.folder), str(self.folder))
        env = {**threads, **options.env}
        options = replace(options, on_proof=on_proof, binds=(*options.binds, bind), env=env)
        command = ("python3", "-m", "fairlead.bridge", str(self.folder / SETTINGS))
        try:
            launched = launch_proved(prepared, command, ranks, options)
        finally:
            over.set()
        if why := launching.explain_exit(launched.result):
            ending = _read(self.folder / ENDED)
            if ending:
                raise fail("bridge-over", reason=ending, code=ExitCode.FAILED)
            raise FairleadError(why, ExitCode.FAILED)
        return launched


def _threads(prepared: Prepared, ranks: int) -> dict[str, str]:
    """As many threads for BLAS as a rank has cores: more would wait for each other."""
    nodes = max(prepared.plan.request.shape.nodes or 1, 1)
    cores = len(os.sched_getaffinity(0)) * nodes // ranks
    return {"OMP_NUM_THREADS": str(max(cores, 1))}


def _read(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def _reason(exc: BaseException | None) -> str:
    if exc is None:
        return "it was stopped"
    if isinstance(exc, FairleadError):
        return exc.findings[0].sentence
    return "it was interrupted" if isinstance(exc, KeyboardInterrupt) else repr(exc)


def _new_folder(top: Path, name: str) -> Path:
    """A folder of that name.

    Raises:
        FairleadError: a session of that name is running, or it is not a name.
    """
    if not session_folders.is_name(name):
        raise fail("bridge-name", name=name)
    if (top / name / SERVER).exists() and not sessions.read(top / name).ended:
        raise fail("bridge-name-taken", name=name)
    return session_folders.renewed(top, name)


def certified() -> tuple[str, str]:
    """A certificate for one session, and its key; both PEM."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fairlead bridge")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of nodes differ
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain
    )
    return made.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
