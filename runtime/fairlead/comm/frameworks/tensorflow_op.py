"""The core's operation for TensorFlow, bound to the core of this process.

It hands the tensors' own memory to the core (``runtime/native/tensorflow``): nothing is copied to NumPy and
nothing waits for Python's lock. One file serves every release of TensorFlow that has the C interface for kernels.
Where there is none, gradients go by ``tf.numpy_function``, and :attr:`Carrier.why` says why.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow as tf

from fairlead.base.errors import FairleadError
from fairlead.comm.core import Comm
from fairlead.comm.frameworks import common
from fairlead.comm.native_core import (
    IN_IMAGE,
    NativeComm,
    failed,
    library_path,
    operation_of,
)

VARIABLE = "FAIRLEAD_COMM_TENSORFLOW_OP"
_WORDS = ctypes.CFUNCTYPE(
    ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_uint64
)


@dataclass(frozen=True)
class Carrier:
    """What carries tensors from TensorFlow to the core.

    Attributes:
        path: the operation's file; "" for ``tf.numpy_function``.
        why: why it is not the operation; "".
    """

    path: str
    why: str = ""

    def __str__(self) -> str:
        return f"operation {self.path}" if self.path else f"numpy_function: {self.why}"


def find(environ: Mapping[str, str] = os.environ, folder: str = IN_IMAGE) -> Carrier:
    """The operation: that of ``FAIRLEAD_COMM_TENSORFLOW_OP``, the one next to the core, the image's own in ``folder``,
    or this machine's."""
    named = environ.get(VARIABLE, "")
    if named == "none":
        return Carrier("", f"{VARIABLE}=none")
    if named:
        why = "" if os.path.isfile(named) else f"{VARIABLE}={named} is not a file"  # noqa: PTH113
        return Carrier("" if why else named, why)
    from fairlead import native
    from fairlead.base.paths import cache_dir

    core, _ = library_path(environ)
    for place in filter(None, (core and os.path.dirname(core), folder)):  # noqa: PTH120
        path = f"{place}/{native.TENSORFLOW.name}"
        if os.path.isfile(path):  # noqa: PTH113
            return Carrier(path)
    if own := native.present(native.TENSORFLOW, cache_dir(environ)):
        return Carrier(str(own))
    return Carrier(
        "", f"there is no {native.TENSORFLOW.name}; `fairlead run` and its images bring it"
    )


def load(path: str) -> Any:
    """TensorFlow's functions that make the operations of a file.

    Raises:
        OSError, tf.errors.OpError, AttributeError: it cannot be loaded, or has none for this TensorFlow.
    """
    made = tf.load_op_library(path)
    if not hasattr(made, "fairlead_aggregate"):
        missing = ctypes.CDLL(path).fairlead_tensorflow_missing
        missing.restype = ctypes.c_char_p
        name = (missing() or b"").decode(errors="replace") or "its operation"
        raise AttributeError(f"TensorFlow {tf.__version__} has no {name}")
    return made


class Op:
    """The operation, bound to the core that :class:`NativeComm` has loaded."""

    def __init__(self, path: str, core: ctypes.CDLL):
        """
        Raises:
            OSError, tf.errors.OpError, AttributeError: it cannot be loaded.
        """
        self._make = load(path).fairlead_aggregate
        self._calls: list[tuple[str, ...]] = []
        self._numbers: dict[tuple[str, ...], int] = {}
        self._last: dict[int, FairleadError] = {}
        self._words = _WORDS(self._write_words)
        self._bind = ctypes.CDLL(path).fairlead_tensorflow_bind
        self._bind.argtypes = (*(ctypes.c_void_p,) * 4, ctypes.c_int)
        self._functions = [
            ctypes.cast(function, ctypes.c_void_p)
            for function in (
                core.fairlead_comm_aggregate,
                core.fairlead_comm_error,
                core.fairlead_comm_while_waiting,
                self._words,
            )
        ]

    def means(
        self,
        ranks: Comm,
        tensors: Sequence[Any],
        names: Sequence[str],
        compression: str | None,
        any_values: bool,
    ) -> list[Any]:
        """:func:`fairlead.comm.frameworks.common.aggregate` of tensors, now or in the graph that is traced."""
        assert isinstance(ranks, NativeComm)  # no other has an operation
        # Where a Ctrl-C is the program's own affair, it ends no call.
        ends = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        self._bind(*self._functions, int(ends))
        call = self._number(tuple(names))
        try:
            return list(
                self._make(
                    tensors=tensors,
                    team=ranks.team_address,
                    operation=operation_of(compression, any_values),
                    call=call,
                    names=list(names),
                )
            )
        except tf.errors.OpError:
            # Here and now, not in a graph: the error itself, not only its words.
            ranks.raise_interrupt()
            if means := self._last.pop(call, None):
                raise means from None
            raise

    def _number(self, names: tuple[str, ...]) -> int:
        if names not in self._numbers:
            self._numbers[names] = len(self._calls)
            self._calls.append(names)
        return self._numbers[names]

    def _write_words(self, code: int, message: bytes, call: int, text: int, room: int) -> int:
        """Writes the words of an error for the operation, which knows no names; returns their length."""
        words = failed("comm.aggregate", code, message.decode(errors="replace"))
        exc = self._last[call] = common.of_a_step(words, self._calls[call])
        line = common.words(exc).encode()[:room]
        ctypes.memmove(text, line, len(line))
        return len(line)


@cache
def checked() -> Callable[..., Any] | None:
    """The operation that passes tensors on, or fails with a code of TensorFlow's; None where there is none."""
    path = find().path
    if not path:
        return None
    try:
        made = load(path)
    except (OSError, tf.errors.OpError, AttributeError):
        return None
    tf.no_gradient("FairleadChecked")  # as a numpy_function's

    def passed_on(*, code: Any, text: Any, tensors: Sequence[Any]) -> Any:
        return made.fairlead_checked(
            code=code, text=tf.io.decode_raw(text, tf.uint8), tensors=tensors
        )

    return passed_on


_chosen: tuple[Carrier, Op | None] | None = None


def chosen(ranks: Comm) -> tuple[Carrier, Op | None]:
    """What carries the tensors, the same on every rank. Collective when it is called first."""
    global _chosen
    if _chosen is None:
        _chosen = _choose(ranks)
    return _chosen


def _choose(ranks: Comm) -> tuple[Carrier, Op | None]:
    if not isinstance(ranks, NativeComm):
        return Carrier("", f"{ranks.backend} carries the gradients, and takes arrays"), None
    carrier, op = find(), None
    if carrier.path:
        try:
            op = Op(carrier.path, ranks.core)
        except (OSError, tf.errors.OpError, AttributeError) as exc:
            carrier = Carrier(
                "", f"{carrier.path} cannot be loaded: {' '.join(str(exc).split())[:300]}"
            )
    # One rank by the operation and one by NumPy would round halves in other ways.
    if ranks.average(float(op is not None)) < 1 and op is not None:
        return Carrier("", "another rank has no operation that fits"), None
    return carrier, op
