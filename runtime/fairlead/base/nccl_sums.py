"""Known sums: ranks with a GPU each all-reduce numbers of which every one knows the sum, and count the wrong ones.

NCCL can compute wrong sums without an error, as LL128 did on GH200 over Slingshot (NVIDIA/nccl#2001). Each rank of
``python3 -m fairlead.prove --nccl-sums`` runs this. It calls the NCCL or RCCL of its image and the GPU's driver by
ctypes, so that it needs neither a framework nor CUDA's compiler; the ranks find each other by one file, and results go
through files too, since the network is what is in question. It imports the standard library only.
"""

from __future__ import annotations

import ctypes
import json
import socket
import sys
import time
from array import array
from contextlib import suppress
from pathlib import Path

from fairlead.base import bounded_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

_UNSIGNED, _SUM = 3, 0  # ncclUint32, ncclSum: exact whatever the order of the additions
_ID_BYTES = 128
_PERIOD = 251  # of the numbers; no power of two, so that a piece of data at a wrong place is seen
_SMALLEST = 8192
_WAIT_S, _PAUSE_S = 120.0, 0.02
_LIBRARIES = ("libnccl.so.2", "librccl.so.1")
_WHEELS = ("nvidia/nccl/lib/libnccl.so.2", "torch/lib/librccl.so*", "torch/lib/libnccl.so.2")


class Failed(Exception):
    """What ends the proof, in one line."""


class Cuda:
    """NVIDIA's driver, without the run time."""

    def __init__(self, number: int) -> None:
        self._driver = _opened("libcuda.so.1")
        self._call("cuInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if not count.value:
            raise Failed("the driver shows no GPU")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), number % count.value)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise Failed(f"{name} failed with {code}")

    def memory(self, size: int) -> ctypes.c_void_p:
        """``size`` bytes of the GPU."""
        at = ctypes.c_void_p()
        self._call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at

    def put(self, to: ctypes.c_void_p, data: bytes) -> None:
        """Copies to the GPU."""
        self._call("cuMemcpyHtoD_v2", to, data, ctypes.c_size_t(len(data)))

    def take(self, at: ctypes.c_void_p, size: int) -> bytes:
        """Copies from the GPU."""
        data = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", data, at, ctypes.c_size_t(size))
        return data.raw

    def wait(self) -> None:
        """Returns when the GPU has done all."""
        self._call("cuCtxSynchronize")


class Hip(Cuda):
    """AMD's run time, by the same methods."""

    def __init__(self, number: int) -> None:
        self._driver = _opened("libamdhip64.so", "libamdhip64.so.6", "libamdhip64.so.7")
        count = ctypes.c_int()
        self._call("hipGetDeviceCount", ctypes.byref(count))
        if not count.value:
            raise Failed("the driver shows no GPU")
        self._call("hipSetDevice", number % count.value)

    def memory(self, size: int) -> ctypes.c_void_p:
        at = ctypes.c_void_p()
        self._call("hipMalloc", ctypes.byref(at), ctypes.c_size_t(size))
        return at

    def put(self, to: ctypes.c_void_p, data: bytes) -> None:
        self._call("hipMemcpy", to, data, ctypes.c_size_t(len(data)), 1)

    def take(self, at: ctypes.c_void_p, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self._call("hipMemcpy", data, at, ctypes.c_size_t(size), 2)
        return data.raw

    def wait(self) -> None:
        self._call("hipDeviceSynchronize")


class _Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * _ID_BYTES)]


class Nccl:
    """A communicator of NCCL or RCCL."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._comm = library, ctypes.c_void_p()
        library.ncclGetErrorString.restype = ctypes.c_char_p
        with suppress(AttributeError):  # before 2.13
            library.ncclGetLastError.restype = ctypes.c_char_p

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            words = self._library.ncclGetErrorString(code).decode()
            with suppress(AttributeError):
                last = self._library.ncclGetLastError(None) or b""
                words = last.decode(errors="replace").strip() or words
            raise Failed(f"{name}: {words}")

    @property
    def version(self) -> str:
        """``2.27.5``."""
        number = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def new_id(self) -> bytes:
        """By which the ranks of a communicator find each other."""
        made = _Id()
        self._call("ncclGetUniqueId", ctypes.byref(made))
        return ctypes.string_at(ctypes.byref(made), _ID_BYTES)

    def join(self, ranks: int, rank: int, unique: bytes) -> None:
        """Returns when the communicator stands."""
        made = _Id.from_buffer_copy(unique)
        self._call("ncclCommInitRank", ctypes.byref(self._comm), ranks, made, rank)

    def all_reduce(self, mine: ctypes.c_void_p, to: ctypes.c_void_p, numbers: int) -> None:
        """Starts a sum over all ranks."""
        count = ctypes.c_size_t(numbers)
        self._call("ncclAllReduce", mine, to, count, _UNSIGNED, _SUM, self._comm, None)

    def close(self) -> None:
        self._call("ncclCommDestroy", self._comm)


def _opened(*names: str) -> ctypes.CDLL:
    why = ""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as exc:
            why = why or str(exc)  # that of the first is the one to correct
    raise Failed(why)


def libraries(given: str = "", path: Sequence[str] = tuple(sys.path)) -> list[str]:
    """Where NCCL or RCCL may be: the named one, else a Python package's, else the loader's."""
    if given:
        return [given]
    wheels = [
        str(library)
        for folder in path
        for wheel in _WHEELS
        for library in sorted(Path(folder).glob(wheel))
    ]
    return [*wheels, *_LIBRARIES]


def pattern(rank: int, numbers: int) -> bytes:
    """The numbers of a rank."""
    return _repeated(rank + 1, numbers)


def sums(ranks: int, numbers: int) -> bytes:
    """What their all-reduce must come to."""
    return _repeated(ranks * (ranks + 1) // 2, numbers)


def _repeated(factor: int, numbers: int) -> bytes:
    block = array("I", [factor * (i + 1) % (1 << 32) for i in range(_PERIOD)]).tobytes()
    return (block * (numbers // _PERIOD + 1))[: 4 * numbers]


def wrong(actual: bytes, expected: bytes) -> int:
    """How many numbers differ."""
    if actual == expected:
        return 0
    return sum(a != b for a, b in zip(array("I", actual), array("I", expected), strict=True))


def sizes(most: int) -> Iterator[int]:
    """Bytes of the all-reduces, from 8 KiB up."""
    size = _SMALLEST
    while size <= most:
        yield size
        size *= 4


def measure(
    nccl: Nccl, gpu: Cuda, rank: int, ranks: int, most: int, repeat: int
) -> list[dict[str, Any]]:
    """A row for each size: bytes, wrong numbers, seconds of the fastest."""
    rows = []
    mine, to = gpu.memory(most), gpu.memory(most)
    for size in sizes(most):
        numbers, seconds, bad = size // 4, [], 0
        expected = sums(ranks, numbers)
        gpu.put(mine, pattern(rank, numbers))
        for _ in range(repeat):
            gpu.put(to, bytes(size))
            gpu.wait()
            begun = time.perf_counter()
            nccl.all_reduce(mine, to, numbers)
            gpu.wait()
            seconds.append(time.perf_counter() - begun)
            bad += wrong(gpu.take(to, size), expected)
        rows.append({"bytes": size, "wrong": bad, "seconds": min(seconds)})
    return rows


class Meeting:
    """How the ranks find each other, and where results go: files that begin with one path."""

    def __init__(self, path: str, rank: int, ranks: int) -> None:
        self._path, self._rank, self._ranks = path, rank, ranks

    def unique(self, make: Callable[[], bytes]) -> bytes:
        """Rank 0's identifier, for all."""
        if self._rank:
            return self._awaited(self._path)
        if Path(self._path).exists():
            raise Failed(f"{self._path} is left from another run; remove it")
        made = make()
        self._leave(self._path, made)
        return made

    def leave(self, result: Mapping[str, Any]) -> None:
        """What this rank has come to."""
        self._leave(f"{self._path}.{self._rank}", json.dumps(result).encode())

    def results(self) -> list[dict[str, Any]]:
        """Of all ranks, for rank 0, which clears the files away."""
        paths = [f"{self._path}.{rank}" for rank in range(self._ranks)]
        results = [bounded_json.loads(self._awaited(path)) for path in paths]
        for path in (*paths, self._path):
            Path(path).unlink()
        return results

    def _leave(self, path: str, data: bytes) -> None:
        made = Path(f"{path}.new")
        made.write_bytes(data)
        made.rename(path)

    def _awaited(self, path: str) -> bytes:
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            try:
                return Path(path).read_bytes()
            except FileNotFoundError:
                time.sleep(_PAUSE_S)
        raise Failed(
            f"{path} did not come within {_WAIT_S:.0f} s: a rank is missing, or sees another folder"
        )


def run(options: Mapping[str, str], rank: int, ranks: int, local: int) -> dict[str, Any]:
    """The part of one rank; its result.

    Args:
        options: ``library``, ``most``, ``repeat``, ``meet``.
        local: number of the rank on its node, by which it takes a GPU.
    Raises:
        Failed: there is no NCCL, no GPU, or the ranks do not come together.
    """
    library = _opened(*libraries(options["library"]))
    nccl = Nccl(library)
    gpu = (Hip if "rccl" in Path(library._name).name else Cuda)(local)
    meeting = Meeting(options["meet"], rank, ranks)
    nccl.join(ranks, rank, meeting.unique(nccl.new_id))
    rows = measure(nccl, gpu, rank, ranks, int(options["most"]), int(options["repeat"]))
    nccl.close()
    mine = {
        "rank": rank,
        "host": socket.gethostname(),
        "library": library._name,
        "version": nccl.version,
        "repeat": int(options["repeat"]),
        "rows": rows,
    }
    meeting.leave(mine)
    return {"ranks": meeting.results()} if rank == 0 else {"ranks": [mine]}


def bus_gb_s(results: Sequence[Mapping[str, Any]]) -> float:
    """Bus bandwidth of the largest all-reduce in 10^9 bytes/s, as nccl-tests define it; the slowest rank counts."""
    ranks = len(results)
    size = results[0]["rows"][-1]["bytes"]
    seconds = max(result["rows"][-1]["seconds"] for result in results)
    return float(2 * (ranks - 1) / ranks * size / seconds / 1e9) if ranks > 1 else 0.0


def line(results: Sequence[Mapping[str, Any]]) -> str:
    """What came of it, in one line."""
    first, hosts = results[0], {result["host"] for result in results}
    rows = first["rows"]
    bad = sum(row["wrong"] for result in results for row in result["rows"])
    count = len(rows) * first["repeat"]
    rate = (
        f"; {bus_gb_s(results):.1f} GB/s bus bandwidth at {_size(rows[-1]['bytes'])}"
        if len(results) > 1
        else ""
    )
    return (
        f"NCCL {first['version']} on {len(results)} rank{'s' * (len(results) != 1)}, {len(hosts)} node{'s' * (len(hosts) != 1)}: "
        f"{count} all-reduces of {_size(rows[0]['bytes'])} to {_size(rows[-1]['bytes'])}, {bad} wrong values{rate}"
    )


def differences(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each rank and size with wrong values."""
    return [
        f"rank {result['rank']} on {result['host']}: {row['wrong']} of {row['bytes'] // 4 * result['repeat']} values "
        f"are wrong at {_size(row['bytes'])}"
        for result in results
        for row in result["rows"]
        if row["wrong"]
    ]


def _size(count: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count // factor} {unit}"
    return f"{count} B"
