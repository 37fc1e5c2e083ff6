"""tf.train.Example messages, without TensorFlow: named lists of bytes, of float32 or of int64.

Source: tensorflow/core/example/{example,feature}.proto and the protocol buffers' wire format
(protobuf.dev/programming-guides/encoding). As in any protobuf reader, unknown fields are skipped, repeated
numbers may be packed or not, and of several features of one name the last counts.

Written here since protobuf is not in the locks of torch's images, and copies each float of a list into a Python object.

Floats and byte strings of :func:`decode` are views of the message: nothing is copied, and every length is
checked against the bytes that are present.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
# The values of a feature; one without a list of any kind has no byte strings.
Feature = tuple[memoryview, ...] | Floats | Ints

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# The numbers of Feature's three kinds of list.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_ALL_ONES = 0xFFFFFFFFFFFFFFFF


class BadExample(ValueError):
    """The bytes are not a tf.train.Example; the message says why and at which byte."""


def encode(features: Mapping[str, bytes | Sequence[bytes] | Floats | Ints]) -> bytes:
    """The message of ``features``, in the order of their names, so that equal ones have equal bytes.

    Args:
        features: byte strings, or an array of float32 or int64, of one dimension, by name.
    Raises:
        TypeError: an array is of another type.
    """
    entries = (
        _field(1, _field(1, name.encode()) + _field(2, _feature(features[name])))
        for name in sorted(features)
    )
    return _field(1, b"".join(entries))


def decode(
    message: bytes | bytearray | memoryview, names: Collection[str] | None = None
) -> dict[str, Feature]:
    """The features of a message.

    Args:
        names: the features to read, where present; others are skipped. None for all.
    Returns:
        By name: byte strings as views of ``message``, float32 ``(n,)``, or int64 ``(n,)``.
    Raises:
        BadExample: it is not a tf.train.Example.
    """
    features: dict[str, Feature] = {}
    for part in _inner((0, memoryview(message))):
        for entry in _inner(part):
            name, value = _read_entry(entry)
            if names is None or name in names:
                features[name] = _read_feature(value)
    return features


def _feature(value: bytes | Sequence[bytes] | Floats | Ints) -> bytes:
    if isinstance(value, np.ndarray):
        if value.dtype == np.float32 and value.ndim == 1:
            return _field(_FLOAT_LIST, _field(1, value.astype("<f4").tobytes()))
        if value.dtype == np.int64 and value.ndim == 1:
            packed = b"".join(_varint(number & _ALL_ONES) for number in value.tolist())
            return _field(_INT64_LIST, _field(1, packed))
        raise TypeError(
            f"a feature is float32 or int64 of one dimension, not {value.dtype} of {value.ndim}"
        )
    strings = [value] if isinstance(value, bytes) else value
    return _field(_BYTES_LIST, b"".join(_field(1, string) for string in strings))


def _field(number: int, content: bytes) -> bytes:
    return b"".join((_varint(number << 3 | _BYTES), _varint(len(content)), content))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


# A part of a message: where it begins in the whole, and its bytes.
_Part = tuple[int, memoryview]


def _read_entry(entry: _Part) -> tuple[str, _Part]:
    name, feature = "", (entry[0], entry[1][:0])
    for number, kind, part in _fields(entry):
        if (number, kind) == (1, _BYTES):
            try:
                name = str(part[1], "utf-8")
            except UnicodeDecodeError as exc:
                raise BadExample(f"the name of a feature at byte {part[0]} is not UTF-8") from exc
        elif (number, kind) == (2, _BYTES):
            feature = part
    return name, feature


def _read_feature(part: _Part) -> Feature:
    feature: Feature = ()
    for number, kind, content in _fields(part):
        if kind != _BYTES:
            continue
        if number == _BYTES_LIST:
            feature = tuple(string for _, string in _inner(content))
        elif number == _FLOAT_LIST:
            feature = _floats(content)
        elif number == _INT64_LIST:
            feature = _integers(content)
    return feature


def _floats(content: _Part) -> Floats:
    parts: list[Floats] = []
    for number, kind, part in _fields(content):
        if number != 1 or kind not in (_BYTES, _FIXED32):
            continue
        if len(part[1]) % 4:
            raise BadExample(
                f"floats at byte {part[0]} are {len(part[1])} bytes, not a multiple of 4"
            )
        parts.append(np.frombuffer(part[1], "<f4"))
    whole = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, "<f4"), *parts])
    return whole.astype(np.float32, copy=False)


def _integers(content: _Part) -> Ints:
    integers = []
    for number, kind, (base, data) in _fields(content):
        if number == 1 and kind in (_BYTES, _VARINT):
            at = 0
            while at < len(data):
                integer, at = _read_varint(data, at, base)
                integers.append(integer & _ALL_ONES)
    return np.array(integers, np.uint64).view(np.int64)


def _inner(part: _Part) -> Iterator[_Part]:
    """The messages or strings in the fields of number 1."""
    return (inner for number, kind, inner in _fields(part) if (number, kind) == (1, _BYTES))


def _fields(part: _Part) -> Iterator[tuple[int, int, _Part]]:
    """Number, wire type and content of each field."""
    base, data = part
    at, end = 0, len(data)
    while at < end:
        begin = at
        key, at = _read_varint(data, at, base)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            start = at
            _, at = _read_varint(data, at, base)
            length = at - start
            at = start
        elif kind == _BYTES:
            length, at = _read_varint(data, at, base)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise BadExample(f"a field at byte {base + begin} has the unknown wire type {kind}")
        if number == 0:
            raise BadExample(f"a field at byte {base + begin} has the number 0")
        if length > end - at:
            raise BadExample(
                f"a field at byte {base + begin} says {length} bytes, {end - at} are there"
            )
        yield number, kind, (base + at, data[at : at + length])
        at += length


def _read_varint(data: memoryview, at: int, base: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 128:
        return data[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at == len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise BadExample(f"a number before byte {base + at} does not end")
