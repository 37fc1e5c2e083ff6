"""The plugin's ``DL_COMM_*`` variables: which of them mean something here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.base.comm_backend import Setting
from fairlead.base.errors import fail

HONOURED = (
    Setting("DL_COMM_DEFAULT_NTHREADS", "2", "helper threads of a team that `init` did not make"),
    Setting(
        "DL_COMM_DEFAULT_PREC_LEVEL",
        "0",
        "1: float32 gradients are averaged in double precision; twice the bytes",
    ),
)
IGNORED = (
    Setting(
        "DL_COMM_PIPELINE_CHUNK_KB",
        "256",
        "chunks of copies to and from a GPU; those of the core are FAIRLEAD_COMM_CHUNK_KB",
    ),
    Setting(
        "DL_COMM_NUM_CUDA_STREAMS", "1", "streams of copies to and from a GPU, which NCCL has here"
    ),
    Setting("DL_COMM_USE_CRCCL", "", "another library for GPUs; NCCL is it here"),
)
MOST_THREADS = 16


def account(environ: Mapping[str, str]) -> list[tuple[Setting, str, bool]]:
    """Each variable, its value here, and whether it means something.

    >>> [(s.name, value) for s, value, counts in account({"DL_COMM_DEFAULT_NTHREADS": "4"}) if counts]
    [('DL_COMM_DEFAULT_NTHREADS', '4'), ('DL_COMM_DEFAULT_PREC_LEVEL', '0')]
    """
    known = [*((s, True) for s in HONOURED), *((s, False) for s in IGNORED)]
    return [(s, environ.get(s.name) or s.default, counts) for s, counts in known]


@dataclass(frozen=True)
class Variables:
    """What they say.

    Attributes:
        ignored: those that are set and change nothing here, known or not.
    """

    threads: int
    double: bool
    ignored: tuple[str, ...]


def read(environ: Mapping[str, str]) -> Variables:
    """
    Raises:
        FairleadError: one of those that count has a value that it cannot have.

    >>> read({"DL_COMM_DEFAULT_PREC_LEVEL": "1", "DL_COMM_USE_CRCCL": "1"})
    Variables(threads=2, double=True, ignored=('DL_COMM_USE_CRCCL',))
    """
    threads, precision = (setting.name for setting in HONOURED)
    known = (threads, precision)
    return Variables(
        _number(environ, threads, range(1, MOST_THREADS + 1), 2),
        _number(environ, precision, range(2), 0) == 1,
        tuple(sorted(n for n in environ if n.startswith("DL_COMM_") and n not in known)),
    )


def _number(environ: Mapping[str, str], name: str, allowed: range, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) not in allowed:
        raise fail(
            "comm-dropin-variable-range",
            name=name,
            text=text,
            start=allowed.start,
            stop=allowed.stop - 1,
        )
    return int(text)
