"""What is in an object store, or packed in a squashfs image, as a read-only folder: by rclone and squashfuse.

The programs end with this process, also when it is killed. rclone gets its credentials by its environment, which only its user can read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.system import is_mounted
from fairlead.objects.registry import open_store
from fairlead.objects.stores.s3 import S3
from fairlead.objects.url import Url, is_url, parse
from fairlead.swap.model import Bind
from fairlead.transfer import copying

_START_S = 30.0
_END_S = 10.0
_POLL_S = 0.05
# Ends with this process, and then unmounts, also what is still in use, which the programs do not.
_TIED = ("setpriv", "--pdeathsig", "TERM", "sh", "-c", """\
place=$1; shift
"$@" & child=$!
trap 'fusermount3 -u -z "$place"; kill $child' TERM
wait $child
fusermount3 -u -z "$place" 2>/dev/null
""", "fairlead-mount")  # fmt: skip
_FUSE = "/dev/fuse"


@dataclass(frozen=True)
class MountItem:
    """A URL or the path of a squashfs image, and where it appears in the container."""

    source: str
    target: str

    def __str__(self) -> str:
        """As ``--mount`` takes it."""
        return f"{self.source}:{self.target}"


@dataclass(frozen=True)
class Mounts:
    """What one run mounts, below a folder of its own in a node's storage."""

    items: tuple[MountItem, ...]
    root: str
    token: str = field(default_factory=lambda: os.urandom(6).hex())

    @property
    def folder(self) -> str:
        return os.path.join(os.path.abspath(self.root), f"fairlead-mount.{self.token}")

    def place(self, number: int) -> str:
        return f"{self.folder}/{number}/data"

    @property
    def binds(self) -> tuple[Bind, ...]:
        return tuple(Bind(self.place(n), i.target, True) for n, i in enumerate(self.items))


def check(items: Sequence[MountItem]) -> None:
    """Tests that sources exist and can be mounted here.

    Raises:
        FairleadError: exit codes 2 and 121; they cannot.
    """
    for item in items:
        program = "rclone" if is_url(item.source) else "squashfuse_ll"
        for tool in (program, "fusermount3"):
            if not shutil.which(tool):
                raise fail("mount-tool", tool=tool, source=item.source)
        if not os.access(_FUSE, os.R_OK | os.W_OK):
            raise fail("mount-tool", tool=_FUSE, source=item.source)
        if is_url(item.source):
            store = open_store(item.source)
            if not isinstance(store, S3):
                raise fail("mount-scheme", source=item.source)
            store.check_readable()
        elif not os.path.isfile(item.source):
            raise fail("mount-source", source=item.source)


@contextlib.contextmanager
def mounted(mounts: Mounts | None, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Mounts for as long as the block runs; nothing is left of it.

    Raises:
        FairleadError: exit code 123; a mount failed.
    """
    if mounts is None or not mounts.items:
        yield
        return
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    os.mkdir(mounts.folder, 0o700)
    try:
        for number, item in enumerate(mounts.items):
            place = mounts.place(number)
            os.makedirs(place)
            running.append((place, _started(item, place, environ)))
        for (place, process), item in zip(running, mounts.items, strict=True):
            _await(place, process, item)
        yield
    finally:
        for place, process in running:
            _ended(place, process)
        if not any(is_mounted(Path(place)) for place, _ in running):
            with contextlib.suppress(OSError):
                copying.remove(mounts.folder)


def _started(item: MountItem, place: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    own = os.path.dirname(place)
    if is_url(item.source):
        url = parse(item.source)
        words, settings = _rclone(url, place, own, environ), _settings(url)
        # What they say is in the settings; rclone fails at some of them.
        environ = {name: value for name, value in environ.items() if not name.startswith("AWS_")}
    else:
        words = ["squashfuse_ll", "-f", "-o", _options("ro"), item.source, place]
        settings = {}
    with open(f"{own}/log", "wb") as log:
        return subprocess.Popen(
            [*_TIED, place, *words],
            env={**environ, **settings},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def _rclone(url: Url, place: str, own: str, environ: Mapping[str, str]) -> list[str]:
    words = [
        "rclone", "mount", f"STORE:{url.bucket}/{url.key}".rstrip("/"), place, "--read-only",
        # Pieces that were read stay on the node's storage, so that a second epoch is a local one.
        "--vfs-cache-mode", "full", "--cache-dir", f"{own}/cache", "--vfs-read-chunk-size", "8M",
        "--dir-cache-time", "24h", "--poll-interval", "0", "--config", "/dev/null", "--log-level", "ERROR",
    ]  # fmt: skip
    if authorities := environ.get("AWS_CA_BUNDLE"):
        words += ["--ca-cert", authorities]
    return words + (["--allow-other"] if _others_may() else [])


def _settings(url: Url) -> dict[str, str]:
    store = open_store(url)
    assert isinstance(store, S3)
    endpoint, region, credentials = store.access()
    settings = {
        "TYPE": "s3", "PROVIDER": "AWS" if ".amazonaws.com" in endpoint else "Other",
        "ENDPOINT": endpoint, "REGION": region, "NO_CHECK_BUCKET": "true",
        "ACCESS_KEY_ID": credentials[0], "SECRET_ACCESS_KEY": credentials[1],
        "SESSION_TOKEN": credentials[2],
    }  # fmt: skip
    return {f"RCLONE_CONFIG_STORE_{name}": value for name, value in settings.items() if value}


def _options(*words: str) -> str:
    return ",".join([*words, *(["allow_other"] if _others_may() else [])])


def _others_may() -> bool:
    """Whether engines that start as another user can be let in."""
    if os.geteuid() == 0:
        return True
    with contextlib.suppress(OSError):
        lines = Path("/etc/fuse.conf").read_text("utf-8").splitlines()
        return "user_allow_other" in [line.strip() for line in lines]
    return False


def _await(place: str, process: subprocess.Popen[bytes], item: MountItem) -> None:
    deadline = time.monotonic() + _START_S
    while not is_mounted(Path(place)):
        if process.poll() is not None or time.monotonic() > deadline:
            log = Path(place).with_name("log").read_text("utf-8", "replace").split("\n")
            said = next((line for line in reversed(log) if line.strip()), "it did not say why")
            raise fail("mount-failed", source=item.source, said=said[-300:])
        time.sleep(_POLL_S)


def _ended(place: str, process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if is_mounted(Path(place)):
        subprocess.run(
            ["fusermount3", "-u", "-z", place], check=False, capture_output=True, timeout=_END_S
        )


def clear_stale(root: str) -> None:
    """Removes folders that killed runs have left in ``root``, where nothing is mounted any more."""
    with contextlib.suppress(OSError), os.scandir(root) as listing:
        for entry in list(listing):
            if not entry.name.startswith("fairlead-mount.") or entry.stat().st_uid != os.geteuid():
                continue
            if time.time() - entry.stat().st_mtime < 3600:
                continue
            places = [f"{entry.path}/{name}/data" for name in os.listdir(entry.path)]
            if not any(is_mounted(Path(place)) for place in places):
                copying.remove(entry.path)
