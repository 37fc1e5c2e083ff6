"""TFRecord files and tf.train.Example messages: known bytes, round trips, and whatever may be wrong with them."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.ml.data import crc32c as crc
from fairlead.ml.data import tfrecord
from fairlead.ml.data.crc32c import crc32c, masked
from fairlead.ml.data.example import BadExample, decode, encode
from fairlead.ml.data.samples import DamagedFile
from fairlead.ml.data.tfrecord import Compression, Writer


# Every example writes the same file again.
def bytewise(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


# --- checksums --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720, B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_has_the_published_values(data: bytes, wanted: int) -> None:
    assert crc32c(data) == wanted


@given(st.integers(0, 24_000), st.integers(0, 2**32))
@example(crc._SHORT - 1, 1)
@example(crc._SHORT, 1)
@example(crc._BLOCK, 1)
@example(crc._A, 1)
@example(crc._A + 1, 1)
@example(2 * crc._A + 1, 1)
def test_crc32c_of_any_length_is_that_of_bit_by_bit(size: int, seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    assert crc32c(data) == crc32c(memoryview(bytearray(data))) == bytewise(data)


def test_crc32c_of_a_long_message_is_that_of_its_parts() -> None:
    # The remainder is linear: messages of one length, added, have added remainders, but for the ones at both ends.
    source = np.random.default_rng(1)
    first, second = source.integers(0, 256, (2, 3_000_001), np.uint8)
    nothing = crc32c(bytes(len(first)))
    assert crc32c((first ^ second).tobytes()) == (
        crc32c(first.tobytes()) ^ crc32c(second.tobytes()) ^ nothing
    )
    # A zero byte in front of the ones that a checksum begins with is not nothing; behind, it is a look-up.
    table = crc._byte_table()
    inner = crc32c(first.tobytes()) ^ 0xFFFFFFFF
    assert crc32c(first.tobytes() + b"\0") == (inner >> 8 ^ table[inner & 255]) ^ 0xFFFFFFFF


def test_the_polynomial_that_folds_is_a_multiple_of_the_generator() -> None:
    table, power, powers = crc._byte_table(), 0x80000000, {}
    for exponent in range(crc._A + 1):
        powers[exponent] = power
        power = power >> 8 ^ table[power & 255]
    assert powers[crc._A] ^ powers[crc._B] ^ powers[crc._C] ^ powers[0] == 0


def test_masked_checksum_is_turned_and_shifted() -> None:
    assert masked(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32


# --- messages ---------------------------------------------------------------------------------

NAMES = st.text(max_size=9)
INTS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40).map(lambda x: np.array(x, np.int64))
FLOATS = st.lists(st.floats(width=32), max_size=9).map(lambda x: np.array(x, np.float32))
FEATURES = st.dictionaries(NAMES, st.one_of(st.lists(st.binary(max_size=9)), INTS, FLOATS))


@given(FEATURES)
def test_example_reads_back_what_was_written(features) -> None:  # type: ignore[no-untyped-def]
    found = decode(encode(features))
    assert found.keys() == features.keys()
    for name, value in features.items():
        if isinstance(value, np.ndarray):
            read = found[name]
            assert isinstance(read, np.ndarray) and read.dtype == value.dtype
            assert read.tobytes() == value.tobytes()
        else:
            assert [bytes(text) for text in found[name]] == value


def test_example_has_the_bytes_of_protocol_buffers() -> None:
    # By hand, from the wire format: fields 1 (features), 1 (entry), 1 (name), 2 (feature), then the list's kind.
    assert encode({"a": np.array([1, -1])}) == (
        b"\n\x16\n\x14\n\x01a\x12\x0f\x1a\x0d\n\x0b\x01" + b"\xff" * 9 + b"\x01"
    )
    assert encode({"b": np.array([1.5], np.float32)}) == (
        b"\n\x0f\n\x0d\n\x01b\x12\x08\x12\x06\n\x04\x00\x00\xc0\x3f"
    )
    assert encode({"c": b"xy"}) == b"\n\x0d\n\x0b\n\x01c\x12\x06\n\x04\n\x02xy"
    assert encode({"z": b"", "a": b""}) == encode({"a": b"", "z": b""})


def entry(feature: bytes) -> bytes:
    inner = b"\n\x01a\x12" + bytes([len(feature)]) + feature
    whole = b"\n" + bytes([len(inner)]) + inner
    return b"\n" + bytes([len(whole)]) + whole


def test_example_unpacked_numbers_are_read() -> None:
    ints = b"\x1a\x05\x08\x07\x08\xac\x02"
    np.testing.assert_array_equal(decode(entry(ints))["a"], [7, 300])
    floats = b"\x12\x0a\x0d" + struct.pack("<f", 2.5) + b"\x0d" + struct.pack("<f", -1)
    np.testing.assert_array_equal(decode(entry(floats))["a"], [2.5, -1])


def test_example_unknown_fields_are_passed_over_and_the_last_of_a_name_counts() -> None:
    first, second = (encode({"a": np.array([n])}) for n in (1, 2))
    unknown = b"\x98\x06\x05" + b"\x9a\x06\x01x" + b"\x9d\x06abcd" + b"\x99\x06abcdefgh"
    found = decode(unknown + first + second + unknown)
    np.testing.assert_array_equal(found["a"], [2])


def test_example_of_many_integers_reads_back() -> None:
    many = np.random.default_rng(0).integers(-(2**62), 2**62, 5000) >> np.arange(5000) % 62
    np.testing.assert_array_equal(decode(encode({"n": many}))["n"], many)


def test_example_asked_for_some_names_gives_no_others() -> None:
    message = encode({"a": b"1", "b": b"2", "c": b"3"})
    assert decode(message, {"b", "z"}).keys() == {"b"}


@given(st.binary(max_size=60))
@example(b"\n\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
@example(b"\x80")
@example(entry(b"\x1a\x03\n\x01\x80"))
@example(entry(b"\x12\x05\n\x03abc"))
@example(entry(b"\x0b"))
@example(b"\x02\x00")
def test_example_of_any_bytes_is_read_or_refused(data: bytes) -> None:
    try:
        decode(data)
    except BadExample as exc:
        assert "byte" in str(exc)


@given(FEATURES, st.data())
def test_example_cut_or_altered_is_read_or_refused(features, data) -> None:  # type: ignore[no-untyped-def]
    message = bytearray(encode(features))
    if not message:
        return
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] ^= data.draw(st.integers(1, 255))
    for bad in (message, message[:at]):
        with contextlib.suppress(BadExample):
            decode(bad)


def test_example_other_arrays_are_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        encode({"a": np.zeros(3)})


# --- files ------------------------------------------------------------------------------------

RECORDS = [b"", b"one", bytes(range(256)) * 3, b"\0" * 70, b"last"]


def written(path: Path, records: list[bytes], how: Compression = Compression.NONE) -> bytes:
    with path.open("wb") as stream, Writer(stream, how) as out:
        for record in records:
            out.write(record)
    return path.read_bytes()


def everything(path: Path) -> list[bytes]:
    return [bytes(record) for record in tfrecord.records(path)]


@pytest.mark.parametrize("how", Compression)
@given(records=st.lists(st.binary(max_size=300), max_size=6))
def test_file_reads_back_what_was_written(
    tmp_path: Path, how: Compression, records: list[bytes]
) -> None:
    path = tmp_path / "a.tfrecord"
    written(path, records, how)
    assert everything(path) == records
    assert tfrecord.count(path) == len(records)
    for start in range(len(records)):
        part = [bytes(r) for r in tfrecord.records(path, start, start + 1)]
        assert part == records[start : start + 1]


def test_file_is_length_checksum_data_checksum(tmp_path: Path) -> None:
    length = struct.pack("<Q", 3)
    wanted = length + struct.pack("<I", masked(length)) + b"one" + struct.pack("<I", masked(b"one"))
    assert written(tmp_path / "a", [b"one"]) == wanted


@pytest.mark.parametrize("how", Compression)
def test_file_same_records_give_same_bytes_and_its_compression_is_seen(
    tmp_path: Path, how: Compression
) -> None:
    assert written(tmp_path / "a", RECORDS, how) == written(tmp_path / "b", RECORDS, how)
    assert tfrecord.compression(tmp_path / "a") is how


def test_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.tfrecord"
    path.write_bytes(b"just a text, and longer than a header")
    assert tfrecord.compression(path) is None
    with pytest.raises(DamagedFile, match="not a whole TFRecord file"):
        everything(path)


def test_index_gives_records_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "a"
    written(path, RECORDS)
    offsets = tfrecord.index(path)
    assert len(offsets) == 5 + 1
    assert [bytes(r) for r in tfrecord.records(path, 3, 5)] == RECORDS[3:]
    assert [bytes(r) for r in tfrecord.records(path, 0, 2)] == RECORDS[:2]


@pytest.mark.parametrize("how", Compression)
def test_file_cut_anywhere_is_named_or_ends_behind_a_record(
    tmp_path: Path, how: Compression
) -> None:
    whole = written(tmp_path / "whole", RECORDS, how)
    ends = {0, *tfrecord.index(tmp_path / "whole")} if not how else {0}
    path = tmp_path / "cut"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size in ends:
            assert everything(path) == RECORDS[: len(everything(path))]
            continue
        with pytest.raises(DamagedFile) as caught:
            everything(path)
        finding = caught.value.findings[0]
        assert (finding.where, finding.check) == (str(path), "data-damaged")
        assert finding.remedy.startswith(f"rm {path};")


def test_file_altered_anywhere_names_record_and_byte(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole", RECORDS[1:])
    offsets = tfrecord.index(tmp_path / "whole")
    path = tmp_path / "altered"
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        if at < 12:  # no longer a file that is known to be one
            assert tfrecord.compression(path) is not Compression.NONE
            continue
        number = int(np.searchsorted(offsets, at, "right")) - 1
        with pytest.raises(DamagedFile) as caught:
            everything(path)
        assert caught.value.why.startswith(f"record {number} at byte {offsets[number]}: ")


@pytest.mark.parametrize("how", [Compression.GZIP, Compression.ZLIB])
def test_compressed_file_altered_anywhere_is_noticed(tmp_path: Path, how: Compression) -> None:
    whole = written(tmp_path / "whole", RECORDS, how)
    path = tmp_path / "altered"
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            # A few bits mean nothing: the system in gzip's header, what fills the last byte of the data.
            assert everything(path) == RECORDS
        except DamagedFile as exc:
            assert exc.path == path


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, tfrecord.LIMIT + 1, 2**29])
@pytest.mark.parametrize("how", Compression)
def test_hostile_length_takes_no_memory(tmp_path: Path, how: Compression, length: int) -> None:
    head = struct.pack("<Q", length)
    content = head + struct.pack("<I", masked(head)) + b"x" * 40
    packed = {
        Compression.NONE: content,
        Compression.GZIP: gzip.compress(content),
        Compression.ZLIB: zlib.compress(content),
    }[how]
    path = tmp_path / "hostile"
    path.write_bytes(packed)
    crc._block_tables()
    tracemalloc.start()
    with pytest.raises(DamagedFile, match="not a whole") as caught:
        everything(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
    assert "record 0 at byte 0" in caught.value.why


@pytest.mark.parametrize("how", [Compression.GZIP, Compression.ZLIB])
def test_checksum_of_a_compressed_file_counts_for_its_last_record(
    tmp_path: Path, how: Compression
) -> None:
    path = tmp_path / "a"
    whole = bytearray(written(path, RECORDS, how))
    whole[-6 if how is Compression.GZIP else -1] ^= 1
    path.write_bytes(whole)
    assert len(list(tfrecord.records(path, 0, 4))) == 4
    with pytest.raises(DamagedFile):
        list(tfrecord.records(path, 0, 5))


def test_gzip_members_follow_on_each_other(tmp_path: Path) -> None:
    first, second = (written(tmp_path / n, [n.encode()] * 2, Compression.GZIP) for n in "ab")
    path = tmp_path / "both"
    path.write_bytes(first + second)
    assert everything(path) == [b"a", b"a", b"b", b"b"]
    path.write_bytes(first + b"rest")
    with pytest.raises(DamagedFile, match="not a whole"):
        everything(path)


def test_gzip_of_one_record_is_counted_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "one"
    whole = bytearray(written(path, [random.Random(1).randbytes(900_000)], Compression.GZIP))
    whole[500_000] ^= 1
    path.write_bytes(whole)
    assert tfrecord.count(path) == 1
    with pytest.raises(DamagedFile):
        everything(path)
