"""The core's operation for TensorFlow: found where it was compiled, bound to the core of this process.

It hands the tensors' own memory to the core (``runtime/native/tensorflow``): nothing is copied to NumPy and
nothing waits for Python's lock. A file is for the one TensorFlow that its name states. Where there is none that
fits, gradients go by ``tf.numpy_function``, and :attr:`Carrier.why` says why.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow as tf

from fairlead.base.errors import FairleadError
from fairlead.comm.core import Comm
from fairlead.comm.frameworks import common
from fairlead.comm.native_core import IN_IMAGE, NativeComm, failed, operation_of

VARIABLE = "FAIRLEAD_COMM_TENSORFLOW_OP"
_STEM = "libfairlead_tensorflow-"
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


def find(version: str, environ: Mapping[str, str] = os.environ, folder: str = IN_IMAGE) -> Carrier:
    """The operation for a TensorFlow of ``version``, by ``FAIRLEAD_COMM_TENSORFLOW_OP`` or in ``folder``."""
    named = environ.get(VARIABLE, "")
    if named == "none":
        return Carrier("", f"{VARIABLE}=none")
    if named:
        return _fitting([named], version, f"{VARIABLE}={named}")
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208, every rank would import pathlib for it
    except OSError:
        names = []
    paths = [f"{folder}/{name}" for name in names if name.startswith(_STEM)]
    if paths:
        return _fitting(paths, version, folder)
    try:
        with open(f"{folder}/tensorflow-op.txt", encoding="utf-8") as stream:
            return Carrier("", f"it could not be compiled: {' '.join(stream.read().split())[:300]}")
    except OSError:
        return Carrier("", "it has not been compiled here; images of `fairlead build` have it")


def _fitting(paths: Sequence[str], version: str, where: str) -> Carrier:
    versions = []
    for path in paths:
        named = re.fullmatch(rf"{re.escape(_STEM)}(.+)\.so", path.rsplit("/", 1)[-1])
        if named is None:
            why = f"{where}: its name has no TensorFlow version, as {_STEM}{version}.so does"
            return Carrier("", why)
        if not os.path.isfile(path):  # noqa: PTH113
            return Carrier("", f"{where} is not a file")
        if named[1] == version:
            return Carrier(path)
        versions.append(named[1])
    return Carrier(
        "", f"{where}: compiled for TensorFlow {', '.join(versions)}, and this is {version}"
    )


class Op:
    """The operation, bound to the core that :class:`NativeComm` has loaded."""

    def __init__(self, path: str, core: ctypes.CDLL):
        """
        Raises:
            OSError, tf.errors.OpError, AttributeError: it cannot be loaded.
        """
        self._make = tf.load_op_library(path).fairlead_aggregate
        self._calls: list[tuple[str, ...]] = []
        self._numbers: dict[tuple[str, ...], int] = {}
        self._last: dict[int, FairleadError] = {}
        self._words = _WORDS(self._said)
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
            if found := self._last.pop(call, None):
                raise found from None
            raise

    def _number(self, names: tuple[str, ...]) -> int:
        if names not in self._numbers:
            self._numbers[names] = len(self._calls)
            self._calls.append(names)
        return self._numbers[names]

    def _said(self, code: int, message: bytes, call: int, text: int, room: int) -> int:
        """Writes the words of an error for the operation, which knows no names; returns their length."""
        words = failed("comm.aggregate", code, message.decode(errors="replace"))
        exc = self._last[call] = common.of_a_step(words, self._calls[call])
        line = common.words(exc).encode()[:room]
        ctypes.memmove(text, line, len(line))
        return len(line)


@cache
def checked() -> Callable[..., Any] | None:
    """The operation that passes tensors on, or fails with a code of TensorFlow's; None where there is none."""
    path = find(tf.__version__).path
    if not path:
        return None
    try:
        made: Callable[..., Any] = tf.load_op_library(path).fairlead_checked
    except (OSError, tf.errors.OpError, AttributeError):
        return None
    tf.no_gradient("FairleadChecked")  # as a numpy_function's
    return made


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
    carrier, op = find(tf.__version__), None
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
