"""Where programs of a tree run: with a root of their own, other ids, and nothing of the machine in sight.

Two processes of ours stand between such a program and the machine. The *supervisor*, which runs our code
alone, is root of a user namespace that has the caller's id and its subordinate ids (subuid(5)), and process 1 of
a process namespace: when it ends, however it ends, the kernel ends all that it started. :func:`supervised`
starts it. For each program it makes a *jail* by :func:`confine`: namespaces below its own in which root is one of
the subordinate ids, so that neither the caller's files nor the machine's are the program's even by name; the tree
is the root (pivot_root(2)), and the process namespace has its own /proc, where process 1 is one of ours without
memory or links that the program may look at. With process 1 all of the jail ends, so nobody changes the
tree afterwards. What of ours has to work on a tree in which programs ran does so in a jail too, by
:func:`within`: a link of the tree leads nowhere else there.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pwd
import re
import runpy
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from fairlead.base.errors import fail
from fairlead_build.base.proc import child, clean_environment, tool, tool_path
from fairlead_build.base.progress_protocol import refuse

# Source: sched.h, sys/mount.h, sys/prctl.h.
_MOUNTS, _UTS, _IPC, _USER, _PID, _NET = (1 << n for n in (17, 26, 27, 28, 29, 30))
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18
)  # fmt: skip
_DETACH = 2
_PDEATHSIG, _DUMPABLE, _NO_NEW_PRIVS = 1, 4, 38
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_DEVICES = ("null", "zero", "full", "random", "urandom")
# Of every jail.
HOST_NAME = "fairlead"
# Ids of a jail: 0 to 65534, which is Debian's nobody.
IDS = 65535
# For root without a range of its own: the last one that systemd sets apart for containers.
_UNUSED = 1878982656
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Jail:
    """What a program sees.

    Attributes:
        root: the tree; an empty folder when ``view`` is what is seen.
        given: folders and files of the machine by their places in the tree, which exist: read-only there.
        view: as ``given``, in an empty tree: only these are there, and links by their text.
        shared: as ``view``, and may be written to.
    """

    root: Path
    given: Mapping[str, Path] = field(default_factory=dict)
    view: Mapping[str, Path | str] = field(default_factory=dict)
    shared: Mapping[str, Path] = field(default_factory=dict)


def host_view() -> dict[str, Path | str]:
    """This machine's programs, as a view of a jail, and of /etc what they need to start."""
    names = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
    etc = ("alternatives", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "perl")
    return view_of(Path("/"), names) | view_of(Path("/etc"), etc, "/etc")


def view_of(folder: Path, names: Sequence[str], place: str = "") -> dict[str, Path | str]:
    """Those ``names`` of a folder that exist, as a view of a jail: links by their text."""
    paths = [folder / name for name in names]
    return {
        f"{place}/{p.name}": str(p.readlink()) if p.is_symlink() else p
        for p in paths
        if p.is_symlink() or p.exists()
    }


# --- from outside ------------------------------------------------------------------------------


@contextmanager
def supervised(
    module: str, *words: str | Path, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts ``python -m module WORDS`` as a supervisor; it ends with the block.

    A line ``fairlead-refused`` on its stderr says what of the machine forbids it.
    """
    # -P: modules come from where this process has them, never from the current folder.
    argv: list[str | Path] = [sys.executable, "-P", "-m", __name__, module, *words]
    env = clean_environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    with child(argv, env=env, stdin=stdin, stderr=subprocess.PIPE, parting="KILL") as process:
        yield process


def main() -> NoReturn:
    """Becomes the supervisor, which runs the module that the arguments name."""
    # A signal that ends this process reaches the supervisor too; this one waits until all of it is gone.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _unshare(_USER | _MOUNTS | _PID, _own_ids())
        alive, ours = os.pipe()
        supervisor = os.fork()
        if supervisor:
            os.close(alive)
            _end_as(supervisor)
        os.close(ours)
        _die_with_parent()
        os.set_blocking(alive, False)
        with suppress(BlockingIOError):
            if not os.read(alive, 1):
                os._exit(137)  # the parent has gone before it was tied to this process
        _mount("none", "/", None, _REC | _PRIVATE)
    except OSError as exc:
        why = str(exc)
        if exc.errno in (errno.ENOSPC, errno.EUSERS):  # user_namespaces(7): not a matter of disks
            why = f"user.max_user_namespaces, or a limit of the container around it, allows no more: {exc}"
        refuse(fail("sandbox-namespaces", why=why))
    try:
        _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    except OSError as exc:
        refuse(fail("sandbox-proc", why=f"{exc}; {_covered()}"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # process 1 ignores it otherwise
    os.umask(0o022)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit(0)


def _covered() -> str:
    """Why the kernel may have refused a /proc: what lies over parts of this one."""
    lines = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    over = [line.split()[4] for line in lines if line.split()[4].startswith("/proc/")]
    return f"covered here: {', '.join(over[:6])}" if over else "nothing covers it here"


def _own_ids() -> dict[str, str]:
    """The id maps of a supervisor (user_namespaces(7)): its own id is 0, and a range follows where there is one."""
    own = {"uid": os.geteuid(), "gid": os.getegid()}
    first = {kind: _range(kind) for kind in own}
    alone = {kind: f"0 {id_here} 1\n" for kind, id_here in own.items()}
    if not all(first.values()):
        return alone
    return {kind: f"{alone[kind]}1 {first[kind]} {IDS}\n" for kind in own}


def _range(kind: str) -> int:
    """The first of ``IDS`` ids that a jail may have; 0 if there are none."""
    delegated = _delegated(kind)
    if os.geteuid() != 0:
        return delegated if tool_path(f"new{kind}map") else 0
    # Root may map what it has itself: its range, or ids that nobody uses, or all but its own.
    rows = [row.split() for row in Path(f"/proc/self/{kind}_map").read_text("utf-8").splitlines()]
    here = [(int(first), int(first) + int(count)) for first, _, count in rows]
    for base in filter(None, (delegated, _UNUSED, 1)):
        if any(first <= base and base + IDS <= end for first, end in here):
            return base
    return 0


def _delegated(kind: str) -> int:
    """The first of the caller's subordinate ids; 0 without a range that is large enough."""
    uid = os.geteuid()
    names = {str(uid)}
    with suppress(KeyError):
        names.add(pwd.getpwuid(uid).pw_name)
    with suppress(OSError, ValueError):
        for row in Path(f"/etc/sub{kind}").read_text("utf-8").splitlines():
            name, first, count = row.split(":")
            if name in names and int(count) >= IDS:
                return int(first)
    return 0


def _unshare(flags: int, maps: Mapping[str, str]) -> None:
    """Moves this process to new namespaces; a helper that stays outside writes its id maps.

    Raises:
        OSError: the kernel, or newuidmap(1), does not allow it.
    """
    here, there = os.pipe()
    answer, writer_fd = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(there)
        try:
            if os.read(here, 1):
                _write_maps(os.getppid(), maps)
        except BaseException as exc:
            os.write(writer_fd, (str(exc) or type(exc).__name__).encode())
        finally:
            os._exit(0)
    os.close(here)
    os.close(writer_fd)
    try:
        _check(_libc.unshare(flags), "unshare")
        os.write(there, b"x")
    finally:
        os.close(there)
        with os.fdopen(answer, "rb") as pipe:
            problem = pipe.read().decode("utf-8", "replace")
        os.waitpid(helper, 0)
    if problem:
        raise OSError(problem)


def _write_maps(pid: int, maps: Mapping[str, str]) -> None:
    several = any(text.count("\n") > 1 for text in maps.values())
    may = _may_map()
    if not several and not may:
        Path(f"/proc/{pid}/setgroups").write_text("deny", "utf-8")
    for kind, text in maps.items():
        if may or not several:
            Path(f"/proc/{pid}/{kind}_map").write_text(text, "utf-8")
            continue
        argv = [tool(f"new{kind}map"), str(pid), *text.split()]
        done = subprocess.run(argv, capture_output=True, check=False)
        if done.returncode:
            raise OSError(done.stderr.decode("utf-8", "replace").strip())


def _may_map() -> bool:
    """Whether this process may map several ids by itself: it has CAP_SETUID (bit 7) and CAP_SETGID (bit 6)."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split("CapEff:")[1].split()[0], 16) & 0b11000000 == 0b11000000


# --- below the supervisor ----------------------------------------------------------------------


def spawn(
    jail: Jail, argv: Sequence[str], env: Mapping[str, str], folder: str = "/", **streams: int
) -> subprocess.Popen[bytes]:
    """Starts a program in a jail.

    Args:
        streams: as of ``subprocess.Popen``. Left out, both outputs go to stderr: stdout is the answer.
    """

    def move() -> None:
        try:
            confine(jail)
            os.chdir(folder)
        except BaseException as exc:
            # In whichever of the processes; nothing but its exit code gets back from here.
            print(f"cannot start {argv[0]}: {exc}", file=sys.stderr, flush=True)
            os._exit(126)

    ours: dict[str, int] = {
        "stdin": subprocess.DEVNULL,
        "stdout": sys.stderr.fileno(),
        "stderr": subprocess.STDOUT,
    }
    ours |= streams
    return subprocess.Popen(
        argv, env=dict(env), preexec_fn=move,
        stdin=ours["stdin"], stdout=ours["stdout"], stderr=ours["stderr"],
    )  # fmt: skip


def execute(jail: Jail, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Runs a program in a jail to its end.

    Raises:
        SystemExit: it failed; with its exit code.
    """
    if code := spawn(jail, argv, env).wait():
        sys.exit(code if code > 0 else 128 - code)


def within(jail: Jail, work: Callable[[], str | None]) -> str:
    """What our own ``work`` returns, done in a jail by a child of this process.

    It cannot import: modules would come from the tree.

    Raises:
        SystemExit: it raised something, which is on stderr now.
    """
    sys.stdout.flush()
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            confine(jail)
            sys.meta_path.clear()
            answer = work() or ""
            with os.fdopen(writer, "w", encoding="utf-8", errors="surrogateescape") as out:
                out.write(answer)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8", errors="surrogateescape") as pipe:
        text = pipe.read()
    _, status = os.waitpid(process, 0)
    if status:
        sys.exit(1)
    return text


def confine(jail: Jail) -> None:
    """Moves the calling process, a new child of the supervisor, into a jail.

    The caller goes on as a grandchild of that process, in it; that one waits and ends as it does.

    Raises:
        OSError: the kernel does not allow it.
    """
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.SIG_DFL)
    inner = f"0 1 {IDS}\n" if tree_owner() else "0 0 1\n"
    _check(_libc.unshare(_MOUNTS), "unshare")
    _lay_out(jail)
    _unshare(_USER | _MOUNTS | _UTS | _IPC | _PID | _NET, {"uid": inner, "gid": inner})
    first = os.fork()
    if first:
        _close()
        _end_as(first)
    _die_with_parent()
    # Still as the caller's own id: another one may not be allowed to enter the folders above the tree.
    # A mount of this namespace's own: those from above are locked.
    _mount(jail.root, jail.root, None, _BIND | _REC)
    os.chdir(jail.root)
    _mount("proc", "proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    # Source: pivot_root(2), "pivot_root(".", ".")".
    machine = os.uname().machine
    _check(_libc.syscall(_PIVOT_ROOT[machine], b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _DETACH), "umount2")
    os.chdir("/")
    socket.sethostname(HOST_NAME)
    # MPI programs want an interface to listen on, even alone. Source: netdevice(7).
    with socket.socket() as any_socket:
        flags = struct.pack("16sh14x", b"lo", 0x41)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, flags)  # SIOCSIFFLAGS
    # Keys that the caller holds stay behind, unless keys are forbidden anyhow. Source: keyctl(2), unistd.h.
    _libc.syscall(_KEYCTL[machine], 1, None)
    with suppress(PermissionError):  # without subordinate ids there are no groups to leave
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    _die_with_parent()  # a change of ids has cleared it
    # Its memory, files and root do not concern those that it watches over.
    _check(_libc.prctl(_DUMPABLE, 0, 0, 0, 0), "prctl")
    _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    program = os.fork()
    if program:
        _close()
        _end_as(program)
    os.setsid()  # signals to its group stay in the jail


def tree_owner() -> int:
    """The id, in the supervisor, that is root in a jail: 1, or 0 where there are no subordinate ids."""
    return int(len(Path("/proc/self/uid_map").read_text("utf-8").splitlines()) > 1)


def _lay_out(jail: Jail) -> None:
    """Mounts what a jail shows, in a mount namespace of this process's own."""
    root, owner = jail.root, tree_owner()
    mine = f"uid={owner},gid={owner}"
    if jail.view or jail.shared:
        _mount("none", root, "tmpfs", _NOSUID | _NODEV, f"mode=755,{mine}")
        for name in ("dev", "proc", "sys", "tmp"):
            (root / name).mkdir()
        (root / "tmp").chmod(0o1777)
    else:
        _mount(root, root, None, _BIND | _REC)
    # A file system of its own, so nothing that a program did to the tree's /dev matters.
    dev = root / "dev"
    _mount("none", dev, "tmpfs", _NOSUID | _NOEXEC, f"mode=755,{mine}")
    for name in _DEVICES:
        _mount(Path("/dev", name), _point(Path("/dev", name), dev / name), None, _BIND)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        (dev / name).symlink_to(f"/proc/self/fd{target}")
    (dev / "shm").mkdir()
    _mount("none", dev / "shm", "tmpfs", _NOSUID | _NODEV, "mode=1777")
    for place, what in jail.view.items():
        if isinstance(what, str):
            _within(root, place).symlink_to(what)
        else:
            _show(what, _point(what, _within(root, place)))
    for place, source in jail.shared.items():
        _mount(source, _point(source, _within(root, place)), None, _BIND | _REC)
    for place, source in jail.given.items():
        _show(source, root / place.lstrip("/"))


def _within(root: Path, place: str) -> Path:
    target = root / place.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _point(source: Path, target: Path) -> Path:
    """``target`` as a place where ``source`` can be mounted."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.touch()
    return target


def _show(source: Path, target: Path) -> None:
    """Binds ``source`` and all that is mounted below it, read-only."""
    _mount(source, target, None, _BIND | _REC)
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split()[4])
        if Path(point).is_relative_to(target):
            # What the mount has may not be taken from it here.
            kept = os.statvfs(point).f_flag & (_NOSUID | _NODEV | _NOEXEC)
            _mount("none", point, None, _REMOUNT | _BIND | _RDONLY | kept)


def mount_union(above: Path, below: Path, target: Path) -> None:
    """Shows ``below`` with ``above`` laid over it at ``target``, read-only: neither is written to.

    Raises:
        OSError: this kernel lets no supervisor do so (Linux does since 5.11), or the paths cannot be written down.
    """
    if re.search(r"[:,\\\\]", f"{above}{below}"):
        raise OSError(f"{above} or {below} has a character that overlayfs takes for its own")
    _mount("none", target, "overlay", _RDONLY | _NOSUID | _NODEV, f"lowerdir={above}:{below}")


def _mount(
    source: str | Path, target: str | Path, kind: str | None, flags: int, data: str | None = None
) -> None:
    words = (os.fsencode(source), os.fsencode(target), kind and kind.encode())
    code = _libc.mount(*words, ctypes.c_ulong(flags), data and data.encode())
    _check(code, f"mount {source} at {target}")


def _check(code: int, what: str) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _die_with_parent() -> None:
    _check(_libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _close() -> None:
    """Closes what a process that only waits inherited: the other end of a pipe must see its end."""
    os.closerange(3, 1024)  # ours are fewer


def _end_as(child: int) -> NoReturn:
    """Waits for a child, and for orphans that come to process 1, and ends as the child does."""
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
