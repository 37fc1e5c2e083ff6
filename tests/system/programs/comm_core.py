"""The collective core as a C program sees it, from Python, and what its results must be.

Programs of test_comm_core.py import it; each rank runs one. NumPy and ctypes, no mpi4py: the core finds
and starts the MPI by itself.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np

FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT32, INT64, BYTES = range(7)
SUM, MEAN = 0, 1
OK, BAD_CALL, NO_MPI, MPI_FAILED, DIFFER, PEER_LOST, TIMEOUT, NO_MEMORY, INTERRUPTED = range(9)
TYPES = (np.float32, np.float64, np.float16, np.uint16, np.int32, np.int64, np.uint8)
NAMES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "bytes")


class Tensor(ctypes.Structure):
    _fields_ = (
        ("in_", ctypes.c_void_p), ("out", ctypes.c_void_p), ("count", ctypes.c_uint64),
        ("dtype", ctypes.c_int32), ("shape", ctypes.c_int32), ("name", ctypes.c_char_p),
    )  # fmt: skip


class Layout(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_int32) for n in ("rank", "size", "local_rank", "local_size", "nodes", "shared_memory")),
        *((n, ctypes.c_char_p) for n in ("mpi", "library", "kernels", "why_not", "host")),
    )  # fmt: skip


class Match(ctypes.Structure):
    _fields_ = (("matches", ctypes.c_int32), ("rank", ctypes.c_int32), ("tensor", ctypes.c_int64))


class Stats(ctypes.Structure):
    _fields_ = (
        ("calls", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("wait_s", ctypes.c_double),
        ("move_s", ctypes.c_double), ("blocked_s", ctypes.c_double), ("stalls", ctypes.c_uint64),
        ("aggregates", ctypes.c_uint64),
    )  # fmt: skip


core = ctypes.CDLL(os.environ["FAIRLEAD_COMM_LIBRARY"])
core.fairlead_comm_error.restype = ctypes.c_char_p
GO_ON = ctypes.CFUNCTYPE(ctypes.c_int)


class Failed(Exception):
    def __init__(self, status: int, words: str):
        super().__init__(f"{status}: {words}")
        self.status, self.words = status, words


def raw(name: str, *arguments: object) -> int:
    """A call as it is; whatever it returns. ctypes gives Python's ints as C ints."""
    return int(getattr(core, f"fairlead_comm_{name}")(*arguments))


def call(name: str, *arguments: object) -> None:
    status = raw(name, *arguments)
    if status:
        raise Failed(status, core.fairlead_comm_error().decode())


def failure(name: str, *arguments: object) -> tuple[int, str]:
    status = raw(name, *arguments)
    return status, core.fairlead_comm_error().decode()


def layout() -> Layout:
    found = Layout()
    call("layout", ctypes.byref(found))
    return found


def team(threads: int = 1) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    call("team", threads, ctypes.byref(made))
    return made


def tensors(*rows: tuple[np.ndarray, np.ndarray | None, int], names: bool = False) -> ctypes.Array:
    """A list for the core: each row is what is read, where it goes (None: the same), its dtype."""
    made = (Tensor * max(len(rows), 1))()
    for i, (given, out, dtype) in enumerate(rows):
        target = given if out is None else out
        name = f"t{i}".encode() if names else None
        made[i] = Tensor(given.ctypes.data, target.ctypes.data, given.size, dtype, 0, name)
    made.kept = rows  # type: ignore[attr-defined]
    return made


def aggregate(of: ctypes.c_void_p, rows: list, operation: int = SUM) -> None:
    call("aggregate", of, tensors(*rows), ctypes.c_uint64(len(rows)), operation)


def start(of: ctypes.c_void_p, rows: list, operation: int = SUM) -> ctypes.c_uint64:
    ticket = ctypes.c_uint64()
    call("start", of, tensors(*rows), ctypes.c_uint64(len(rows)), operation, ctypes.byref(ticket))
    return ticket


def unaligned(values: np.ndarray, offset: int) -> np.ndarray:
    """A copy of ``values`` that begins ``offset`` bytes off."""
    room = np.zeros(values.nbytes + 64 + offset, np.uint8)
    start_at = -room.ctypes.data % 64 + offset
    made = room[start_at : start_at + values.nbytes].view(values.dtype)
    made[:] = values
    return made


# --- what results must be ----------------------------------------------------------------------


def widened(bits: np.ndarray, dtype: int) -> np.ndarray:
    """Halves as float32."""
    if dtype == BFLOAT16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32) if dtype == FLOAT16 else bits


def narrowed(values: np.ndarray, dtype: int) -> np.ndarray:
    """float32 as halves, to nearest even."""
    if dtype == FLOAT16:
        return values.astype(np.float16)
    if dtype != BFLOAT16:
        return values
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    kept = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, bits >> 16 | 0x40, kept).astype(np.uint16)


def expected(parts: list[np.ndarray], dtype: int, operation: int) -> np.ndarray:
    """One node's result, to the bit: added in the order of ranks, rounded once."""
    with np.errstate(all="ignore"):
        total = widened(parts[0], dtype).copy()
        for part in parts[1:]:
            total += widened(part, dtype)
        if operation & 1:
            total *= total.dtype.type(1 / len(parts))
        return narrowed(total, dtype)


def same_bits(a: np.ndarray, b: np.ndarray, dtype: int) -> bool:
    """To the bit, but that a NaN is a NaN."""
    if a.tobytes() == b.tobytes():
        return True
    if dtype in (INT32, INT64, BYTES):
        return False
    nan_a, nan_b = np.isnan(widened(a, dtype)), np.isnan(widened(b, dtype))
    return bool((nan_a == nan_b).all()) and a[~nan_a].tobytes() == b[~nan_b].tobytes()
