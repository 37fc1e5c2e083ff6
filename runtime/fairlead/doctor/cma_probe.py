"""Can one process read another's memory? Run as a separate program, it prints the result as JSON.

MPIs move large messages between the ranks of a node in this way (cross-memory attach, CMA):
process_vm_readv(2), which ptrace(2)'s access rules and Yama's ``ptrace_scope`` govern. Three cases, in
each of which neither process is a parent of the other:

``plain``       as they are
``allowed``     the one that is read has said who may: prctl(2), PR_SET_PTRACER, as UCX does
``namespaces``  each in its own user namespace, as when an engine makes one per rank

The value is 0 when it worked, else an errno. It imports the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import sys

_PR_SET_PTRACER = 0x59616D61
_CLONE_NEWUSER = 0x10000000
_TEXT = b"fairlead"


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def main() -> None:
    """Prints ``{"plain": 0, "allowed": 0, "namespaces": 1}``."""
    cases = ("plain", "allowed", "namespaces")
    json.dump({case: _read_across(case) for case in cases}, sys.stdout)


def _read_across(case: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    where, tell_where = os.pipe()
    wait, let_go = os.pipe()
    held = os.fork()
    if held == 0:
        os.close(let_go)
        text = ctypes.create_string_buffer(_TEXT)
        if case == "allowed":
            libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1).value, 0, 0, 0)
        failed = _own_namespace(libc) if case == "namespaces" else 0
        os.write(tell_where, f"{ctypes.addressof(text)} {failed}".encode())
        os.close(tell_where)
        os.read(wait, 1)  # until the reader is through
        os._exit(0)
    os.close(tell_where)
    os.close(wait)
    address, failed = map(int, os.read(where, 64).split())
    reader = os.fork()
    if reader == 0:
        if case == "namespaces":
            failed = failed or _own_namespace(libc)
        os._exit(failed or _read(libc, held, address))
    _, status = os.waitpid(reader, 0)
    os.close(let_go)
    os.waitpid(held, 0)
    os.close(where)
    return os.waitstatus_to_exitcode(status)


def _own_namespace(libc: ctypes.CDLL) -> int:
    return 0 if libc.unshare(_CLONE_NEWUSER) == 0 else ctypes.get_errno()


def _read(libc: ctypes.CDLL, pid: int, address: int) -> int:
    into = ctypes.create_string_buffer(len(_TEXT))
    local = _Iovec(ctypes.addressof(into), len(_TEXT))
    remote = _Iovec(address, len(_TEXT))
    with contextlib.suppress(AttributeError):
        got = libc.process_vm_readv(
            pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, ctypes.c_ulong(0)
        )
        return 0 if got == len(_TEXT) and into.raw == _TEXT else ctypes.get_errno() or errno.EFAULT
    return errno.ENOSYS


if __name__ == "__main__":
    main()
