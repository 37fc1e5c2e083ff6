"""Can ranks of a node read each other's memory? MPI then moves large messages in one copy."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World

YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def examine(world: World) -> Iterator[Diagnosis]:
    ran = world.try_cma()
    try:
        tried = {case: int(code) for case, code in json.loads(ran.stdout).items()}
        plain, allowed, apart = (tried[case] for case in ("plain", "allowed", "namespaces"))
    except (ValueError, KeyError, AttributeError):
        yield note("cma-untested", words=" ".join(ran.argv), ran=ran)
        return
    scope = (world.read(YAMA) or "").strip()
    if plain == 0:
        yield _well(world, apart)
    elif allowed == 0:
        yield ill("cma-only-with-consent", yama=YAMA, scope=scope)
    else:
        yield ill(
            "cma-denied-by-yama" if scope not in ("", "0") else "cma-denied-by-kernel",
            yama=YAMA,
            scope=scope,
            why=_why(plain, scope),
            remedy=_remedy(plain, scope),
        )


def _well(world: World, apart: int) -> Diagnosis:
    what = "a process may read another's memory"
    engine = world.engine_here()
    if engine and engine.userns_per_rank and apart:
        return note("cma-separate-namespaces", what=what, engine_path=engine.path)
    return well(what, "tried with process_vm_readv")


def _why(code: int, scope: str) -> str:
    if code == errno.ENOSYS:
        return (
            "the kernel was built without CONFIG_CROSS_MEMORY_ATTACH, or a seccomp filter hides it"
        )
    if scope == "2":
        return "only an administrator can trace"
    if scope == "3":
        return "no user can trace until a reboot"
    ended = errno.errorcode.get(code, code)
    return f"it ended with {ended}: a seccomp filter, or a security module"


def _remedy(code: int, scope: str) -> str:
    if scope == "3":
        return "a line kernel.yama.ptrace_scope = 0 in /etc/sysctl.d, then a reboot"
    if scope == "2":
        return "sudo sysctl -w kernel.yama.ptrace_scope=0 (and a line in /etc/sysctl.d to keep it)"
    if code == errno.ENOSYS:
        return "a kernel with it; in Docker: --cap-add SYS_PTRACE"
    return "in Docker: --cap-add SYS_PTRACE; else ask an administrator which security module forbids it"


CHECK = Check("cma", "access to another rank's memory (tested)", examine, Topic.NODE, order=30)
