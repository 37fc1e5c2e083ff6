"""CRC-32C (Castagnoli), at nearly the speed of memory, in NumPy: the checksum of TFRecord files.

Written here since `crc32c` and `google-crc32c` are compiled wheels that would have to enter the lock, and so the digest, of
every image that reads data.

Source: RFC 3720, appendix B.4 (test vectors); tensorflow/core/lib/hash/crc32c.h (the mask).

A checksum is the remainder of a polynomial over GF(2). Where the generator divides
x^(8a) + x^(8b) + x^(8c) + 1, a byte of the message may be struck out and added (XOR) to the bytes that
lie a - b, a - c and a behind it: thousands of bytes at once, by three operations on slices. The square
of that polynomial has 2a, 2b and 2c, so a long message is folded in a few large steps. What is left,
5 kB at most, goes through a table.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Bytes = bytes | bytearray | memoryview
_Words = npt.NDArray[np.uint32]

_GENERATOR = 0x82F63B78  # bits reversed: the lowest bit is the highest power
_A, _B, _C = 5685, 1362, 426  # found by search; a unit test divides it
_BLOCK = 256
_SHORT = 64
_PART = 1 << 20
_LARGEST = 4  # 90 kB are at work then, which stay in a core's cache
_MASK = 0xA282EAD8


def masked(data: Bytes) -> int:
    """The checksum as TFRecord files have it, turned and shifted, so that a checksum of checksums works."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: Bytes) -> int:
    """The CRC-32C of ``data``, 0 to 2^32 - 1.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    if len(data) < _SHORT:
        crc, table = 0xFFFFFFFF, _byte_table()
        for byte in bytes(data):
            crc = crc >> 8 ^ table[(crc ^ byte) & 255]
        return crc ^ 0xFFFFFFFF
    whole = np.frombuffer(data, np.uint8)
    folded = whole[:0]
    # In parts: a copy of a record would double the memory that it takes.
    for at in range(0, len(whole), _PART):
        folded = np.concatenate((folded, whole[at : at + _PART]))
        if not at:
            # To begin with all ones is to invert the first 32 bits; then the remainder is linear.
            folded[:4] ^= 255
        folded = _folded(folded)
    return _remainder(folded) ^ 0xFFFFFFFF


def _folded(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The end of ``data``, at most ``_A`` bytes, changed so that its remainder is that of all."""
    scale = min((len(data) // _A).bit_length(), _LARGEST)
    while scale >= 0:
        a, b, c = _A << scale, _B << scale, _C << scale
        while len(data) > a:
            # No more than a - b, so that no byte is struck out that has yet to be added to.
            count = min(len(data) - a, a - b)
            first = data[:count]
            for step in (a - b, a - c, a):
                part = data[step : step + count]
                np.bitwise_xor(part, first, out=part)
            data = data[count:]
        scale -= 1
    return data


def _remainder(data: npt.NDArray[np.uint8]) -> int:
    """Remainder of a few thousand bytes, from zero: a look-up for each byte of a block at once."""
    lead = -len(data) % _BLOCK  # zeros in front change nothing
    at = np.zeros(lead + len(data), np.intp)
    at[lead:] = data
    places, behind = _block_tables()
    blocks = np.bitwise_xor.reduce(places.take(at.reshape(-1, _BLOCK) + _ROWS), axis=1)
    crc = 0
    t0, t1, t2, t3 = behind
    for block in blocks.tolist():
        crc = t0[crc & 255] ^ t1[crc >> 8 & 255] ^ t2[crc >> 16 & 255] ^ t3[crc >> 24] ^ block
    return crc


_ROWS = 256 * np.arange(_BLOCK)  # where each place of a block begins in the flat table


@lru_cache(maxsize=1)
def _byte_table() -> list[int]:
    """What a byte becomes when eight zero bits follow it."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_GENERATOR if crc & 1 else 0)
        table.append(crc)
    return table


@lru_cache(maxsize=1)
def _block_tables() -> tuple[_Words, list[list[int]]]:
    """Remainders of each byte at each place of a block, (256, 256); and of each byte of a
    remainder that a block follows, four lists of 256."""
    table = np.array(_byte_table(), np.uint32)

    def longer(crcs: _Words) -> _Words:
        after: _Words = crcs >> np.uint32(8) ^ table[crcs & np.uint32(255)]
        return after

    places = np.empty((_BLOCK, 256), np.uint32)
    places[-1] = table
    for place in range(_BLOCK - 2, -1, -1):
        places[place] = longer(places[place + 1])
    behind = []
    for byte in range(4):
        crcs = np.arange(256, dtype=np.uint32) << np.uint32(8 * byte)
        for _ in range(_BLOCK):
            crcs = longer(crcs)
        behind.append(crcs.tolist())
    return places, behind
