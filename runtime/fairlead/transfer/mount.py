"""What is in an object store, or packed in a squashfs image, as a read-only folder on each node: by rclone and squashfuse.

The programs end with the process that started them, also when it is killed. rclone gets its credentials by its
environment, which only its user can read.

On the launching host that is the run's own process. Another node's first rank starts one
(:func:`hold`, from :mod:`fairlead.launch.node_check`), which goes on as long as ranks do; a step after the launch ends it,
and removes what Slurm's end of the ranks' step has left of it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base import proc_stat
from fairlead.base.errors import FairleadError, fail
from fairlead.base.process import PYTHON
from fairlead.base.system import is_mounted
from fairlead.launch.node_check import NodeMounts
from fairlead.launch.nodes import key
from fairlead.objects.registry import open_store
from fairlead.objects.stores.s3 import S3
from fairlead.objects.url import Url, is_url, parse
from fairlead.swap.model import Bind
from fairlead.transfer import copying

_START_S = 20.0
_HEAD = 4096
_END_S = 10.0
_POLL_S = 0.05
_AFTER_RANKS_S = 30.0  # that mounts of another node stay after the last rank, if nothing ends them
_LOOK_S = 0.5
_STALE_S = 3600.0
# Ends with this process, and then unmounts, also what is still in use, which the programs do not. A mount whose program
# has ended stays: reads fail, where an empty folder would pass for the data.
_TIED = ("setpriv", "--pdeathsig", "TERM", "sh", "-c", """\
place=$1; shift
"$@" & child=$!
trap 'fusermount3 -u -z "$place"; kill $child' TERM
wait $child
""", "fairlead-mount")  # fmt: skip
_FUSE = "/dev/fuse"
_OWNER = "owner"
_PREFIX = "fairlead-mount."


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
    """What one run mounts, below a folder of its own in each node's storage.

    Attributes:
        everywhere: ranks may come to other nodes, which mount the same.
    """

    items: tuple[MountItem, ...]
    root: str
    everywhere: bool = False
    token: str = field(default_factory=lambda: os.urandom(6).hex())

    @property
    def folder(self) -> str:
        return os.path.join(os.path.abspath(self.root), f"{_PREFIX}{self.token}")

    @property
    def on_nodes(self) -> NodeMounts | None:
        """How other nodes mount the same."""
        if not self.everywhere:
            return None
        words = ["-m", "fairlead.transfer", "mount", self.folder]
        for item in self.items:
            words += ["--mount", item.source, item.target, _identity(item.source)]
        return NodeMounts(tuple(words), self.folder)

    @property
    def end_words(self) -> tuple[str, ...]:
        """End the mounts of a node other than this host, as a step on every node."""
        words = (*PYTHON, "-m", "fairlead.transfer", "unmount", self.folder)
        return (*words, "--step", "--home", key())

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
    Path(mounts.folder, _OWNER).write_text(f"{key()} {_me()}", "utf-8")
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
            reason = next((line for line in reversed(log) if line.strip()), "it did not say why")
            raise fail("mount-failed", source=item.source, reason=reason[-300:])
        time.sleep(_POLL_S)


def _ended(place: str, process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if is_mounted(Path(place)):
        _unmounted(place)


def _unmounted(place: str) -> None:
    words = ["fusermount3", "-u", "-z", place]
    subprocess.run(words, check=False, capture_output=True, timeout=_END_S)


def clear_stale(root: str) -> None:
    """Removes what killed runs have left in ``root``."""
    names = []
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(root) if name.startswith(_PREFIX)]
    for name in names:
        folder = os.path.join(root, name)
        with contextlib.suppress(OSError):
            if not _ours(folder):
                continue
            host, process = _owner(folder)
            old = time.time() - os.lstat(folder).st_mtime > _STALE_S
            # The storage may be one that other hosts see.
            if (host == key() and not _lives(process)) or (
                old and not host and not _places(folder)
            ):
                _removed(folder)


# --- other nodes ---------------------------------------------------------------------------------


def hold(folder: str, items: Mapping[MountItem, str]) -> None:
    """Mounts on this node, and leaves a process behind that holds the mounts until :func:`release`, or until no rank is left.

    Args:
        items: with what :func:`_identity` says on the launching host.
    Raises:
        FairleadError: exit codes 2, 121 and 123; a mount failed.
    """
    root, name = os.path.split(folder)
    mounts = Mounts(tuple(items), root, token=name.removeprefix(_PREFIX))
    clear_stale(root)
    check(tuple(items))
    for item, there in items.items():
        if (here := _identity(item.source)) != there:
            raise fail("mount-differs", source=item.source, here=here, there=there)
    if os.path.lexists(folder):
        if not _ours(folder):
            raise fail("mount-taken", folder=folder)
        host = _owner(folder)[0]
        if host != key():
            raise fail(
                "mount-shared", folder=folder, host=host.rpartition(".")[0] or "another node"
            )
        release(folder)  # of an earlier attempt
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with open(reading, encoding="utf-8") as answer:
            if (text := answer.read()) != "mounted":
                source = ", ".join(item.source for item in items)
                raise fail("mount-not-held", source=source, reason=text or "it has ended")
        return
    try:
        os.close(reading)
        _detached(writing)
        _held(mounts, functools.partial(os.write, writing, b"mounted"), writing)
    except Exception as exc:
        finding = exc.findings[0] if isinstance(exc, FairleadError) else None
        with contextlib.suppress(OSError):
            os.write(writing, (f"{finding.where}: {finding.why}" if finding else str(exc)).encode())
    finally:
        os._exit(0)


def _detached(keeps: int) -> None:
    """Keeps nothing of the rank's that could hold up its end."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(3, keeps)
    os.closerange(keeps + 1, 1024)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if number != signal.SIGTERM else _ended_by_step)


class _Released(BaseException):
    """The step after the launch ends the mounts."""


def _ended_by_step(signum: int, frame: object) -> None:
    raise _Released


def _held(mounts: Mounts, on_mounted: Callable[[], object], answer: int) -> None:
    with contextlib.suppress(_Released), mounted(mounts):
        ranks = Path(mounts.folder, "ranks")
        ranks.mkdir()
        on_mounted()
        os.close(answer)
        began: dict[str, str] = {}
        last = time.monotonic()
        while time.monotonic() - last < _AFTER_RANKS_S:
            for name in set(os.listdir(ranks)) - set(began):
                began[name] = proc_stat.began(int(name))
            if any(start and proc_stat.began(int(name)) == start for name, start in began.items()):
                last = time.monotonic()
            time.sleep(_LOOK_S)


def release(folder: str, home: str = "") -> bool:
    """Ends the mounts that a process of this node holds in a folder; nothing is left of them.

    Args:
        home: the launching host's :func:`~fairlead.launch.nodes.key`, which ends its own.
    Returns:
        Whether there was something to end.
    Raises:
        FairleadError: exit code 123; something is left.
    """
    host, process = _owner(folder)
    if host != key() or host == home:
        return False
    if _lives(process):
        os.kill(int(process.split()[0]), signal.SIGTERM)
        until = time.monotonic() + _END_S
        while os.path.lexists(folder) and _lives(process) and time.monotonic() < until:
            time.sleep(_POLL_S)
    _removed(folder)
    if os.path.lexists(folder):
        raise fail("mount-left-here", folder=folder)
    return True


def _identity(source: str) -> str:
    """What must be the same on every node: the store of a URL, or the beginning of an image, which has the time it was made."""
    if is_url(source):
        store = open_store(source)
        assert isinstance(store, S3)
        return " ".join(store.access()[:2])
    with open(source, "rb") as image:
        digest = hashlib.sha256(image.read(_HEAD)).hexdigest()[:16]
        return f"{digest}, {os.fstat(image.fileno()).st_size} bytes"


def _ours(folder: str) -> bool:
    """Whether a folder is this user's: others may have made one of any name in the same storage."""
    with contextlib.suppress(OSError):
        status = os.lstat(folder)
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _me() -> str:
    return f"{os.getpid()} {proc_stat.began(os.getpid())}"


def _owner(folder: str) -> tuple[str, str]:
    """The host that has mounts in a folder, and the process that holds them, with its start; empty if unknown or another user's."""
    if not _ours(folder):
        return "", ""
    try:
        host, _, process = Path(folder, _OWNER).read_text("utf-8").partition(" ")
    except (OSError, ValueError):
        return "", ""
    return host, process


def _lives(process: str) -> bool:
    pid, _, start = process.partition(" ")
    return pid.isdecimal() and proc_stat.began(int(pid)) == start != ""


def _places(folder: str) -> list[str]:
    """What is mounted in a run's folder."""
    folders = [f"{folder}/{name}/data" for name in os.listdir(folder) if name.isdecimal()]
    return [place for place in folders if is_mounted(Path(place))]


def _removed(folder: str) -> None:
    """Unmounts what is in a folder, also where the program behind it is gone, and removes it."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        for place in _places(folder):
            _unmounted(place)
        if not _places(folder):
            copying.remove(folder)
