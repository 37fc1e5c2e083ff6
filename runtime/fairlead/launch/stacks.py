"""Where another process is: the MPI call that its main thread is in, and whether that call returns.

A stack is unwound by the tables that compilers leave for exceptions (``.eh_frame``), read from the process's own
memory: files of a container need not be found. Addresses on a stack that merely look like code are stale as often as
not, so nothing is guessed: what cannot be unwound is None. The process stands still for about a millisecond.

Whether a call returns is seen by a hardware breakpoint, in the debug register that ptrace sets.

Linux on x86-64 only. Whoever may not trace the process (Yama, another user, gdb is there first) sees nothing.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import platform
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTRAP
from typing import BinaryIO, NamedTuple

_SEIZE, _INTERRUPT, _LISTEN = 0x4206, 0x4207, 0x4208
_PEEK_USER, _POKE_USER, _CONT, _GETREGS, _DETACH = 3, 6, 7, 12, 17
_DEBUG_REGISTERS = 848  # in struct user
_DR0, _DR6, _DR7 = 0, 6, 7
_WALL = 0x40000000
_STRTAB, _SYMTAB, _STRSZ, _GNU_HASH = 5, 6, 10, 0x6FFFFEF5  # of the dynamic section
_STACK = 1 << 18  # bytes that are looked at
_STOP_S = 2.0
_TRAP_S = 0.01  # a signal for a traced process waits so long
_FRAMES = 256
# DWARF's numbers of registers, and their places in struct user_regs_struct.
_PLACES = {
    0: 10,
    1: 12,
    2: 11,
    3: 5,
    4: 13,
    5: 14,
    6: 4,
    7: 19,
    8: 9,
    9: 8,
    10: 7,
    11: 6,
    12: 3,
    13: 2,
    14: 1,
    15: 0,
}
_PLACES[16] = 16
_SP, _PC = 7, 16
# Calls that other ranks complete. MPI_File_*, MPI_Comm_accept and their kind may wait for something else.
_WAITS = re.compile(
    r"p?mpi_(recv|probe|mprobe|mrecv|send|ssend|rsend|bsend|sendrecv|sendrecv_replace|wait|waitall|waitany|waitsome"
    r"|barrier|bcast|reduce|allreduce|reduce_scatter|reduce_scatter_block|scan|exscan|gatherv?|allgatherv?|scatterv?"
    r"|alltoall[vw]?|neighbor_\w+|comm_(dup|split|split_type|create|create_group|free|disconnect)|win_fence)"
    r"(_c|_f08|_f08ts)?_*",
    re.IGNORECASE,
)


class Call(NamedTuple):
    """An MPI call that has not returned: its function, and the address in the program where it will return to."""

    function: str
    returns_to: int


def waits_in(pid: int) -> Call | None:
    """The MPI call in which the main thread of ``pid`` waits for other ranks; None where it is elsewhere.

    Raises:
        OSError: it may not be traced, or has ended.
        Unreadable: its stack cannot be unwound.
    """
    if platform.machine() != "x86_64":
        raise Unreadable(f"stacks of {platform.machine()} are not read")
    try:
        with _Process(pid) as process:
            return _outermost_call(list(process.frames()))
    except (struct.error, LookupError, ValueError) as exc:
        raise Unreadable("its unwind tables are unusual") from exc


def functions(pid: int) -> list[str]:
    """The functions that the main thread of ``pid`` is in, innermost first, as far as its stack can be unwound.

    Raises:
        OSError: it may not be traced, or has ended.
        Unreadable: nothing of its stack can be.
    """
    if platform.machine() != "x86_64":
        raise Unreadable(f"stacks of {platform.machine()} are not read")
    names: list[str] = []
    with _Process(pid) as process, suppress(Unreadable, struct.error, LookupError, ValueError):
        for depth, frame in enumerate(process.frames()):
            names.append(frame.module.function(frame.pc - bool(depth)) or hex(frame.pc))
    return names


class Returns:
    """Whether a process comes to an address: a thread traces it until it does, or for as long as is asked for.

    A breakpoint that is left would end the process: the thread outlives a caller that does not close it, and waits for a
    process that does not stop. perf can count without a stop, but once in some 10,000 times the signal of the breakpoint
    went to the process and ended it (Linux 6.18 in a virtual machine); a process that is traced hands it to its tracer.
    """

    def __init__(self, pid: int, address: int):
        """
        Raises:
            OSError: the kernel does not allow it (Yama, no breakpoint free), or the process has ended.
            Unreadable: the process does not stop for it.
        """
        self._came = False
        self._closed = threading.Event()
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._trace, args=(_Traced(pid), address, ready))
        self._thread.start()
        ready.result()

    def came(self) -> bool:
        """Whether it has come there."""
        return self._came

    def close(self) -> None:
        """Stops looking."""
        self._closed.set()
        self._thread.join(_STOP_S)

    def _trace(self, traced: _Traced, address: int, ready: Future[None]) -> None:
        try:
            status = traced.stop()
            traced.poke(_DR6, 0)
            traced.poke(_DR0, address)
            traced.poke(_DR7, 1)  # enabled in this thread, on execution
            traced.go_on(_passed(status))
        except BaseException as exc:
            # With the thread the tracing ends.
            ready.set_exception(exc)
            return
        ready.set_result(None)
        with suppress(ProcessLookupError):  # it has ended
            while not self._closed.wait(_TRAP_S) and threading.main_thread().is_alive():
                while status := traced.status():
                    if self._has_come(traced, status):
                        return traced.leave(0)
                    traced.go_on(status & 0xFF, status >> 8)
            self._end(traced, traced.stop(for_ever=True))

    def _has_come(self, traced: _Traced, status: int) -> bool:
        if status >> 8 or status & 0xFF != SIGTRAP or not traced.peek(_DR6) & 1:
            return False
        self._came = True
        traced.poke(_DR7, 0)
        return True

    def _end(self, traced: _Traced, status: int) -> None:
        """Takes the breakpoint away; its signal, which is on its way if the process has just come there, as well."""
        traced.poke(_DR7, 0)
        while not self._has_come(traced, status):
            if not traced.peek(_DR6) & 1:
                return traced.leave(_passed(status))
            traced.go_on(status & 0xFF, status >> 8)
            while not (status := traced.status()):
                time.sleep(0.001)
        return traced.leave(0)


def _passed(status: int) -> int:
    """The signal that a stopped process gets when it goes on."""
    return 0 if status >> 8 else status & 0xFF


class _Traced:
    """A process under ptrace, of which the kernel answers the thread alone that has stopped it."""

    def __init__(self, pid: int):
        self._pid = pid
        self._ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        self._ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._ptrace.restype = ctypes.c_long
        self._seized = False

    def _call(self, request: int, at: int = 0, value: int = 0) -> None:
        if self._ptrace(request, self._pid, at, value) == -1:
            raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")

    def stop(self, *, for_ever: bool = False) -> int:
        """Stops it; for what, as :meth:`status`: a signal that came in this moment is to be passed on.

        Raises:
            OSError: it may not be traced, or has ended.
            Unreadable: it does not stop in time, as while a file server does not answer it.
        """
        if not self._seized:
            self._call(_SEIZE)
        self._seized = True
        self._call(_INTERRUPT)
        late = time.monotonic() + _STOP_S
        while for_ever or time.monotonic() < late:
            if status := self.status():
                return status
            time.sleep(0.001)
        raise Unreadable(f"it does not stop within {_STOP_S:g} s")

    def status(self) -> int:
        """For what it has stopped since the last look: a signal, and ptrace's event above the lowest byte; 0 while it runs.

        Its exit code is left to its parent, which may be this very process.

        Raises:
            ProcessLookupError: it has ended.
        """
        kinds = os.WEXITED | os.WSTOPPED
        try:
            status = os.waitid(os.P_PID, self._pid, kinds | os.WNOHANG | os.WNOWAIT | _WALL)
            if status and status.si_code not in (os.CLD_TRAPPED, os.CLD_STOPPED):
                raise ProcessLookupError
            stop = os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WNOHANG | _WALL)
        except ChildProcessError:
            raise ProcessLookupError from None
        return stop.si_status if stop else 0

    def go_on(self, signal: int, event: int = 0) -> None:
        """With ``signal``; a process that others have stopped (SIGSTOP) stays so."""
        if event:
            self._call(_CONT if signal == SIGTRAP else _LISTEN)
        else:
            self._call(_CONT, 0, signal)

    def leave(self, signal: int) -> None:
        self._call(_DETACH, 0, signal)

    def registers(self) -> list[int]:
        """As ``struct user_regs_struct`` has them."""
        values = (ctypes.c_ulonglong * 27)()
        self._call(_GETREGS, 0, ctypes.addressof(values))
        return [int(value) for value in values]

    def poke(self, register: int, value: int) -> None:
        """Sets a debug register."""
        self._call(_POKE_USER, _DEBUG_REGISTERS + 8 * register, value)

    def peek(self, register: int) -> int:
        # Of glibc's function, which returns the value.
        return int(self._ptrace(_PEEK_USER, self._pid, _DEBUG_REGISTERS + 8 * register, 0))


def _outermost_call(frames: list[_Frame]) -> Call | None:
    outermost = None
    for at, frame in enumerate(frames[:-1]):
        name = frame.module.function(frame.pc - bool(at))
        if name and _WAITS.fullmatch(name):
            outermost = at
    if outermost is None:
        return None
    # The program's code within the call (a reduction of its own) is at work.
    outside = {f.module.base for f in frames[outermost + 1 :] if not f.module.of_libc}
    if any(frame.module.base in outside for frame in frames[:outermost]):
        return None
    name = frames[outermost].module.function(frames[outermost].pc - bool(outermost))
    return Call(_plain(name), frames[outermost + 1].pc)


def _plain(name: str) -> str:
    """Fortran's and the profiling interface's names as the standard's: ``pmpi_barrier_`` is ``MPI_Barrier``."""
    bare = re.sub(r"^p?mpi_|(_c|_f08|_f08ts)?_*$", "", name.lower())
    return f"MPI_{bare.capitalize()}"


class Unreadable(Exception):
    """A stack that this reader of unwind tables cannot follow; the text says why."""


def _unknown() -> Unreadable:
    return Unreadable("its unwind tables are unusual")


class _Bytes:
    """A cursor over unwind information."""

    def __init__(self, data: bytes, at: int = 0):
        self.data, self.at = data, at

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return int(value)

    def uleb(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.take("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def sleb(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.take("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if byte & 0x40 else value

    def block(self) -> bytes:
        size = self.uleb()
        self.at += size
        return self.data[self.at - size : self.at]

    def text(self) -> bytes:
        end = self.data.index(0, self.at)
        raw = self.data[self.at : end]
        self.at = end + 1
        return raw


@dataclass
class _Row:
    """How a frame's caller is found: its stack pointer (CFA), and where registers were saved relative to it."""

    register: int = _SP
    offset: int = 8
    expression: bytes = b""
    saved: dict[int, int] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)

    def copy(self) -> _Row:
        return _Row(
            self.register, self.offset, self.expression, dict(self.saved), set(self.unknown)
        )


@dataclass(frozen=True)
class _Frame:
    pc: int
    module: _Module


class _Process:
    """A process whose main thread was stopped for a moment: its registers, its stack, and its mapped files."""

    def __init__(self, pid: int):
        self._pid = pid

    def __enter__(self) -> _Process:
        self._memory: BinaryIO = Path(f"/proc/{self._pid}/mem").open("rb", buffering=0)
        try:
            self._stop()
            self._modules = self._mapped()
        except BaseException:
            self._memory.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()

    def _stop(self) -> None:
        """In a thread of its own: when that ends, the kernel lets a process go on that did not stop in time."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._look).result()

    def _look(self) -> None:
        traced = _Traced(self._pid)
        status = traced.stop()
        try:
            registers = traced.registers()
            self._registers = {name: registers[at] for name, at in _PLACES.items()}
            self._low = self._registers[_SP] - 128  # leaf functions use what is below
            self._stack = self.read(self._low, _STACK, short=True)
        finally:
            traced.leave(_passed(status))

    def read(self, address: int, size: int, *, short: bool = False) -> bytes:
        data = os.pread(self._memory.fileno(), size, address) if address < 1 << 63 else b""
        if len(data) < size and not short:
            raise _unknown()
        return data

    def word(self, address: int) -> int:
        at = address - self._low
        if not 0 <= at <= len(self._stack) - 8:
            raise _unknown()
        return int(struct.unpack_from("<Q", self._stack, at)[0])

    def _mapped(self) -> list[tuple[int, int, _Module]]:
        bases: dict[str, _Module] = {}
        mappings = []
        for line in Path(f"/proc/{self._pid}/maps").read_text(errors="replace").splitlines():
            span, modes, offset, device, inode, *name = line.split(None, 5)
            low, high = (int(text, 16) for text in span.split("-"))
            key = f"{device} {inode} {''.join(name)}"
            if int(offset, 16) == 0 and key not in bases and name:
                bases[key] = _Module(low, name[0], self.read)
            if "x" in modes and key in bases:
                mappings.append((low, high, bases[key]))
        return mappings

    def _module(self, pc: int) -> _Module:
        for low, high, module in self._modules:
            if low <= pc < high:
                return module
        raise _unknown()

    def frames(self) -> Iterator[_Frame]:
        """From the innermost outwards, to the start of the thread."""
        registers, pc = dict(self._registers), self._registers[_PC]
        for depth in range(_FRAMES):
            module = self._module(pc)
            yield _Frame(pc, module)
            # A call may be the last instruction of a function.
            row = module.row(pc - bool(depth))
            if row is None or _PC in row.unknown:
                return
            cfa = self._cfa(row, registers)
            pc = self.word(cfa + row.saved[_PC])
            registers |= {n: self.word(cfa + at) for n, at in row.saved.items() if n != _PC}
            registers = {n: value for n, value in registers.items() if n not in row.unknown}
            registers[_SP], registers[_PC] = cfa, pc
            if not pc:
                return
        raise _unknown()

    def _cfa(self, row: _Row, registers: dict[int, int]) -> int:
        if not row.expression:
            if row.register not in registers:
                raise _unknown()
            return registers[row.register] + row.offset
        stack: list[int] = []
        at = _Bytes(row.expression)
        while at.at < len(at.data):
            op = at.take("B")
            if 0x70 <= op < 0x90:  # breg
                stack.append(registers[op - 0x70] + at.sleb())
            elif 0x30 <= op < 0x50:  # lit
                stack.append(op - 0x30)
            elif op == 0x06:  # deref
                stack.append(self.word(stack.pop()))
            elif op == 0x23:  # plus_uconst
                stack.append(stack.pop() + at.uleb())
            elif op in _OPERATIONS:
                right = stack.pop()
                stack.append(_OPERATIONS[op](stack.pop(), right))
            else:
                raise _unknown()
        return stack[-1]


# As a procedure linkage table's entries use them.
_OPERATIONS: dict[int, Callable[[int, int], int]] = {
    0x1A: lambda a, b: a & b,
    0x22: lambda a, b: a + b,
    0x24: lambda a, b: a << b,
    0x2A: lambda a, b: int(a >= b),
}


class _Module:
    """A mapped ELF file: its unwind table and its exported functions, in the memory of a process."""

    def __init__(self, base: int, path: str, read: Callable[..., bytes]):
        self.base, self.path, self._read = base, path, read
        self._table: tuple[list[int], list[int]] | None = None
        self._symbols: list[tuple[int, int, str]] | None = None

    @property
    def of_libc(self) -> bool:
        """The C library, whose functions both sides call, and the first of every stack."""
        name = self.path.rpartition("/")[2]
        return name.startswith(("libc.", "libc-", "ld-", "libpthread", "[vdso]"))

    def _segments(self) -> dict[int, tuple[int, int]]:
        head = self._read(self.base, 64)
        if head[:5] != b"\x7fELF\x02":
            raise _unknown()
        (at,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        segments: dict[int, tuple[int, int]] = {}
        first = None
        table = self._read(self.base + at, size * count)
        for i in range(count):
            kind, _, _, address, _, _, length = struct.unpack_from("<IIQQQQQ", table, i * size)
            if kind == 1 and first is None:
                first = address & ~0xFFF
            segments.setdefault(kind, (address, length))
        bias = self.base - (first or 0)
        return {kind: (address + bias, length) for kind, (address, length) in segments.items()}

    # --- functions --------------------------------------------------------------------------------

    def function(self, pc: int) -> str:
        """The exported function that has ``pc``, MPI's own name first; empty when none has."""
        if self._symbols is None:
            self._symbols = self._exported()
        at = bisect.bisect_right(self._symbols, (pc, 1 << 64, ""))
        names = []
        while at and pc - self._symbols[at - 1][0] < 1 << 20:
            at -= 1
            start, size, name = self._symbols[at]
            if start <= pc < start + size:
                names.append(name)
            elif names:
                break
        return min(
            names, key=lambda name: (not _WAITS.fullmatch(name), len(name), name), default=""
        )

    def _exported(self) -> list[tuple[int, int, str]]:
        segments = self._segments()
        if 2 not in segments:
            return []
        address, length = segments[2]
        entries = dict(
            reversed(list(struct.iter_unpack("<qQ", self._read(address, length // 16 * 16))))
        )
        # glibc's loader leaves addresses there, musl's what the file has.
        symbols, texts, hashes = (
            value + (self.base if value < self.base else 0)
            for value in (entries.get(kind, 0) for kind in (_SYMTAB, _STRTAB, _GNU_HASH))
        )
        size = entries.get(_STRSZ, 0)
        if _GNU_HASH not in entries or not 0 < size < 1 << 24:
            return []
        count = self._count(hashes)
        names = self._read(texts, size)
        exported = []
        table = self._read(symbols, count * 24)
        for name, info, _, section, value, extent in struct.iter_unpack("<IBBHQQ", table):
            if info & 15 == 2 and section and extent and name < size:
                text = names[name : names.index(0, name)].decode(errors="replace")
                exported.append((value, extent, text))
        start = self.base if self._shared() else 0
        return sorted((value + start, extent, text) for value, extent, text in exported)

    def _count(self, at: int) -> int:
        """The number of symbols, which known by the last chain of their hash table only."""
        buckets, first, words, _ = struct.unpack("<4I", self._read(at, 16))
        if buckets > 1 << 20 or words > 1 << 20:
            raise _unknown()
        chains = at + 16 + 8 * words + 4 * buckets
        last = max(struct.unpack(f"<{buckets}I", self._read(chains - 4 * buckets, 4 * buckets)))
        if last < first:
            return int(first)
        while not struct.unpack("<I", self._read(chains + 4 * (last - first), 4))[0] & 1:
            last += 1
        return int(last) + 1

    def _shared(self) -> bool:
        return bool(struct.unpack("<H", self._read(self.base + 16, 2))[0] == 3)

    # --- unwinding --------------------------------------------------------------------------------

    def row(self, pc: int) -> _Row | None:
        """How the caller of the function at ``pc`` is found; None at a thread's start, whose function has none."""
        if self._table is None:
            self._table = self._index()
        starts, entries = self._table
        at = bisect.bisect_right(starts, pc) - 1
        if at < 0:
            return None
        begin, fde = starts[at], self._entry(entries[at])
        cie = self._entry(entries[at] + 4 - fde.take("I"))
        cie.at += 5  # its id, which is 0, and the version
        words = cie.text()
        code, data = cie.uleb(), cie.sleb()
        cie.uleb()  # the return address's register
        size = _pointer(cie, words)
        fde.at += size
        extent = fde.take("I" if size == 4 else "Q")
        if pc >= begin + extent:
            return None
        if words[:1] == b"z":
            fde.block()
        row = _Row(saved={})
        _run(cie, row, _Row(), (code, data), pc - begin)
        _run(fde, row, row.copy(), (code, data), pc - begin)
        return row if _PC in row.saved or _PC in row.unknown else None

    def _entry(self, address: int) -> _Bytes:
        (length,) = struct.unpack("<I", self._read(address, 4))
        if not 0 < length < 1 << 20:
            raise _unknown()
        return _Bytes(self._read(address + 4, length))

    def _index(self) -> tuple[list[int], list[int]]:
        """Where each function begins, and where its entry is (LSB 4.0, 10.6.2)."""
        at, length = self._segments().get(0x6474E550, (0, 0))
        if not at:
            raise _unknown()
        head = self._read(at, length)
        if head[0] != 1 or head[2] != 0x03 or head[3] != 0x3B or head[1] & 0xF not in (0x3, 0xB):
            raise _unknown()
        (count,) = struct.unpack_from("<I", head, 8)
        pairs = list(struct.iter_unpack("<ii", head[12 : 12 + 8 * count]))
        return [at + begin for begin, _ in pairs], [at + entry for _, entry in pairs]


def _pointer(cie: _Bytes, words: bytes) -> int:
    """The size of an address, by the augmentation that comes next."""
    encoding, width = 0, {0x0: 8, 0x3: 4, 0x4: 8, 0xB: 4, 0xC: 8}
    if words and words[:1] != b"z":
        raise _unknown()
    extra = _Bytes(cie.block() if words else b"")
    for letter in words[1:].decode():
        if letter == "R":
            encoding = extra.take("B")
        elif letter == "L":
            extra.take("B")
        elif letter == "P":
            extra.at += width[extra.take("B") & 0xF]
    return width[encoding & 0xF]


def _run(at: _Bytes, row: _Row, initial: _Row, factors: tuple[int, int], until: int) -> None:
    """Executes call frame instructions up to the one at ``until`` bytes into the function (DWARF 5, 6.4.2)."""
    code, data = factors
    place, remembered = 0, []
    while at.at < len(at.data):
        op = at.take("B")
        kind, low = op >> 6, op & 0x3F
        if kind == 1 or op in (0x02, 0x03, 0x04):
            place += code * (low if kind == 1 else at.take({2: "B", 3: "H", 4: "I"}[op]))
            if place > until:
                return
        elif kind == 2:
            row.saved[low] = at.uleb() * data
        elif kind == 3 or op == 0x06:
            register = low if kind == 3 else at.uleb()
            row.saved.pop(register, None)
            if register in initial.saved:
                row.saved[register] = initial.saved[register]
        elif op == 0x0A:
            remembered.append(row.copy())
        elif op == 0x0B:
            before = remembered.pop()
            row.__dict__.update(before.__dict__)
        else:
            _define(op, at, row, data)


# Operands of the other instructions, as LEB128: unsigned, signed. A block may follow.
_OPERANDS = {
    0x00: "", 0x05: "uu", 0x07: "u", 0x08: "u", 0x09: "uu", 0x0C: "uu", 0x0D: "u", 0x0E: "u", 0x0F: "", 0x10: "u",
    0x11: "us", 0x12: "us", 0x13: "s", 0x14: "uu", 0x15: "us", 0x16: "u", 0x2E: "u",
}  # fmt: skip


def _define(op: int, at: _Bytes, row: _Row, data: int) -> None:
    """One instruction that says where the frame, or a register, is."""
    if op not in _OPERANDS:
        raise _unknown()
    if op == 0x0F:
        row.expression = at.block()
        return
    operands = [at.uleb() if form == "u" else at.sleb() for form in _OPERANDS[op]]
    first, second = (*operands, 0, 0)[:2]
    if op in (0x10, 0x16):
        at.block()
    if op in (0x0C, 0x12, 0x0D):
        row.register, row.expression = first, b""
    if op in (0x0C, 0x12):
        row.offset = second * (data if op == 0x12 else 1)
    elif op in (0x0E, 0x13):
        row.offset = first * (data if op == 0x13 else 1)
    elif op in (0x05, 0x11):
        row.saved[first] = second * data
    elif op in (0x07, 0x08, 0x09, 0x10, 0x14, 0x15, 0x16):
        row.saved.pop(first, None)
        if op != 0x08:  # held where this reader does not look
            row.unknown.add(first)
