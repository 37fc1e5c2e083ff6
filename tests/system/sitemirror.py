"""A site of our own on loopback, for builds without fairlead: a mirror of locked files, a base image.

The mirror serves what locks name out of the download cache, laid out as a Debian mirror and as a
Python package index are. The base image is made by mmdebstrap from this machine's own mirror, since
no hub can be reached.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from tests.system import hosts
from tests.system.podman import Podman, podman
from tests.system.registries import LoopbackRegistry, registry

from fairlead.base.paths import locked
from fairlead.engines.apptainer import find_apptainer
from fairlead_build.cache.store import Cache, scratch_parent, workspace
from fairlead_build.recipe.lock import AptIndex, Lock, SourceArchive, Wheel
from fairlead_build.resolve.apt_sources import apt_sources


def base_archive(suite: str = "bookworm") -> Path:
    """A tar of a Debian with apt and pip, as the base images of a hub are; made once and kept."""
    made = hosts.KEPT / f"base-{suite}.tar"
    with locked(hosts.KEPT / ".lock"):
        if not made.is_file():
            source = apt_sources(AptIndex("debian", suite, ("main",)))[0]
            with workspace(scratch_parent(1 << 30), "fairlead-") as work:
                (work / "sources").write_text(source.narrowed(suite, ("main",)))
                argv = ["mmdebstrap", "--variant=apt", "--include=python3-pip", "--quiet",
                        '--aptopt=APT::Install-Recommends "false"', "--skip=check/signed-by",
                        suite, work / "base.tar", work / "sources"]  # fmt: skip
                subprocess.run(
                    argv, env={**os.environ, "TMPDIR": str(work)}, check=True, timeout=300
                )
                shutil.move(work / "base.tar", made.with_suffix(".partial"))
            made.with_suffix(".partial").rename(made)
    return made


@dataclass(frozen=True)
class Site:
    """A mirror, an index, a registry with the base image, and the engines that build from them.

    Attributes:
        mirror, index: URLs, as in the arguments MIRROR and PIP_INDEX_URL of a rendered recipe.
        base: the reference of the base image in the registry.
        podman: Podman, with a store of its own.
        scratch: where Apptainer keeps its images.
    """

    mirror: str
    index: str
    registry: LoopbackRegistry
    base: str
    podman: Podman
    scratch: Path

    def podman_build(self, folder: Path, tag: str) -> None:
        """Builds ``folder/Containerfile``."""
        arguments = [w for a in self.arguments for w in ("--build-arg", a)]
        words = ("build", "--quiet", "--network=host", *arguments, "-t", tag, folder)
        self.podman(*words, limit_s=300)

    def apptainer_build(
        self,
        folder: Path,
        image: Path,
        timeout: float = 300,
        squash: str = "-comp zstd -Xcompression-level 1",
    ) -> None:
        """Builds ``folder/Singularity.def``; with an empty ``squash`` as Apptainer does by itself."""
        engine = find_apptainer()
        assert engine is not None
        arguments = [w for a in self.arguments for w in ("--build-arg", a)]
        argv = [
            engine,
            "build",
            "--fakeroot",
            "--no-https",
            *([f"--mksquashfs-args={squash}"] if squash else []),
            *arguments,
            image,
        ]
        places = {name: self.scratch / name.lower() for name in ("CACHEDIR", "TMPDIR")}
        for place in places.values():
            place.mkdir(exist_ok=True)
        environ = {f"APPTAINER_{name}": str(place) for name, place in places.items()}
        _checked([*argv, "Singularity.def"], environ, timeout, cwd=folder)

    @property
    def apptainer_version(self) -> str:
        """As `apptainer --version` tells it."""
        return _checked([str(find_apptainer()), "--version"], {}, 20).split()[-1]

    @property
    def arguments(self) -> tuple[str, ...]:
        return (f"BASE={self.base}", f"MIRROR={self.mirror}", f"PIP_INDEX_URL={self.index}")


def _checked(
    argv: Sequence[str | Path], environ: dict[str, str], timeout: float, cwd: Path | None = None
) -> str:
    done = subprocess.run(
        [str(word) for word in argv],
        env={**os.environ, **environ},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@contextmanager
def site(locks: Sequence[Lock], cache: Cache | None = None) -> Iterator[Site]:
    """A site that has the files of these locks; they must be in the download cache."""
    archive = base_archive()
    with (
        workspace(scratch_parent(4 << 30), "fairlead-") as scratch,
        mirror(locks, cache or Cache.default()) as url,
        registry(scratch / "registry") as store,
        podman(scratch_parent(2 << 30)) as engine,
    ):
        base = f"{store.host}/debian:base"
        made = Site(f"{url}/debian", f"{url}/simple", store, base, engine, scratch)
        made.podman("import", "--quiet", archive, made.base)
        made.podman("push", "--quiet", "--tls-verify=false", made.base)
        yield made


@dataclass
class Wire:
    """A network that can be cut: ``left`` more bytes pass it, then nothing does any more."""

    left: int = 1 << 60
    served: list[str] = field(default_factory=list)

    def take(self, body: bytes) -> bytes:
        passed = body[: max(self.left, 0)]
        self.left -= len(body)
        return passed


@contextmanager
def mirror(locks: Sequence[Lock], cache: Cache, wire: Wire | None = None) -> Iterator[str]:
    """The URL of a server with a mirror below ``/debian`` and an index below ``/simple``."""
    wire = wire or Wire()
    files: dict[str, str] = {}
    projects: dict[str, dict[str, str]] = {}
    for lock in locks:
        for deb in (*lock.deb, *lock.build_deb):
            files[f"/debian/{deb.path}"] = deb.sha256
        packages: list[Wheel | SourceArchive] = [*lock.wheel, *lock.source]
        for package in packages:
            files[f"/files/{package.file}"] = package.sha256
            name = re.sub(r"[-_.]+", "-", package.name).lower()
            projects.setdefault(name, {})[package.file] = package.sha256

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if wire.left <= 0:
                return  # hung up without an answer
            path = unquote(self.path)
            wire.served.append(path)
            if path in files:
                self._send(cache.blob(files[path]).read_bytes(), "application/octet-stream")
            elif (found := projects.get(path.removeprefix("/simple/").rstrip("/"))) is not None:
                links = (f'<a href="/files/{f}#sha256={h}">{f}</a>\n' for f, h in found.items())
                self._send("".join(links).encode(), "text/html")
            else:
                self.send_error(404)

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(wire.take(body))

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
