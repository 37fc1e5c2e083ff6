"""Tables as rows of a matrix: what is accepted, what is refused and named, and that nothing changes on the way."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fairlead.bridge import arrow
from fairlead.bridge.arrow import (
    DTYPES,
    Form,
    Rows,
    common_dtype,
    dense_rows,
    pieces,
    sparse_rows,
    without_nan,
)
from fairlead.bridge.store import Budget, Store
from fairlead.bridge.streams import densified
from fairlead.bridge.wire import END, Connection, WireError


def through(form: Form, send, index: pa.DataType | None = None) -> list[arrow.Piece]:
    """What a receiver gets of what ``send`` does with the rows of a stream."""
    ours, theirs = socket.socketpair()
    sender, receiver = Connection(ours, "receiver"), Connection(theirs, "sender")
    receiver.grant(1 << 20)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            rows = Rows(sender, form, index)
            send(rows)
            rows.end()
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        got = list(pieces(receiver, form, 5))
        receiver.say(END)
    finally:
        if errors:
            raise errors[0]
    thread.join(5)
    assert not errors, errors
    return got


def joined(got: list[arrow.Piece], form: Form) -> np.ndarray:
    return np.concatenate(
        [np.empty((0, form.cols), form.dtype), *(densified(p, form) for p in got)]
    )


@given(
    rows=st.integers(0, 40), cols=st.integers(1, 9), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99),
    piece=st.sampled_from([1, 64, 8 << 20]),
)  # fmt: skip
def test_dense_rows_arrive_bit_for_bit(
    rows: int, cols: int, dtype: str, seed: int, piece: int
) -> None:
    form = Form(cols, dtype, allow_nan=True)
    bits = np.random.default_rng(seed).integers(
        0, 255, (rows, cols * np.dtype(dtype).itemsize), np.uint8
    )
    values = bits.view(dtype).reshape(rows, cols)
    before, arrow.PIECE_BYTES = arrow.PIECE_BYTES, piece
    try:
        got = through(form, lambda stream: stream.dense(values))
    finally:
        arrow.PIECE_BYTES = before
    assert joined(got, form).tobytes() == values.tobytes()


@given(
    rows=st.integers(0, 40),
    cols=st.integers(1, 9),
    seed=st.integers(0, 99),
    piece=st.sampled_from([16, 8 << 20]),
)
def test_sparse_rows_arrive(rows: int, cols: int, seed: int, piece: int) -> None:
    form = Form(cols, "float64", sparse=True)
    matrix = sparse.random_array(
        (rows, cols), density=0.3, format="csr", rng=np.random.default_rng(seed)
    )
    before, arrow.PIECE_BYTES = arrow.PIECE_BYTES, piece
    try:
        got = through(form, lambda s: s.sparse(matrix.indptr, matrix.indices, matrix.data))
    finally:
        arrow.PIECE_BYTES = before
    assert (joined(got, form) == matrix.toarray()).all()
    store = Store(Budget(1 << 30, "rank 0"))
    store.receive("m1", 0, 0, iter(got))
    assert (store.seal("m1", form, [(0, 0, rows)]).local.toarray() == matrix.toarray()).all()


def test_an_index_of_any_type_goes_along() -> None:
    form, values = Form(2, "float32"), np.arange(6, dtype=np.float32).reshape(3, 2)
    for index in (
        pa.array(["a", "ü", ""]),
        pa.array([1, 2, 3], pa.int64()),
        pa.array([1.5, None, 2]),
    ):
        got = through(form, lambda s, i=index: s.dense(values, i), index.type)
        assert pa.concat_arrays([p.index for p in got]).equals(index)


def test_a_stream_of_another_form_is_refused() -> None:
    with pytest.raises(WireError) as caught:
        _as(Form(3, "float64"), Form(2, "float64"), np.zeros((4, 3)))
    assert caught.value.check == "bridge-arrow"


def _as(sent: Form, expected: Form, values: np.ndarray) -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = Connection(ours, "a"), Connection(theirs, "b")
    receiver.grant(1 << 20)
    Rows(sender, sent).dense(values)
    sender.close()
    list(pieces(receiver, expected, 5))


def test_a_stream_that_is_cut_or_miscounts_is_noticed() -> None:
    for last, check in ((None, "bridge-lost"), ({"rows": 5, "bytes": 0}, "bridge-count")):
        ours, theirs = socket.socketpair()
        sender, receiver = Connection(ours, "a"), Connection(theirs, "b")
        receiver.grant(1 << 20)
        rows = Rows(sender, Form(2, "float64"))
        rows.dense(np.zeros((4, 2)))
        sender.say(END, **last) if last else sender.close()
        with pytest.raises(WireError) as caught:
            list(pieces(receiver, Form(2, "float64"), 5))
        assert caught.value.check == check


def test_a_sparse_row_that_points_beyond_the_matrix_is_refused() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = Connection(ours, "a"), Connection(theirs, "b")
    receiver.grant(1 << 20)
    Rows(sender, Form(2, "float64", sparse=True)).sparse([0, 1], [2], [1.0])
    with pytest.raises(WireError) as caught:
        list(pieces(receiver, Form(2, "float64", sparse=True), 5))
    assert caught.value.check == "bridge-arrow"


def batch(**columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {k: v if isinstance(v, pa.Array) else pa.array(v) for k, v in columns.items()}
    )


def vectors(*rows: list[float] | tuple[int, dict[int, float]]) -> pa.Array:
    """As Spark's are: dense from their values, sparse from a size and some values."""
    made = [
        {"type": 1, "size": None, "indices": None, "values": row} if isinstance(row, list)
        else {"type": 0, "size": row[0], "indices": list(row[1]), "values": list(row[1].values())}
        for row in rows
    ]  # fmt: skip
    lists = [("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
    return pa.array(made, pa.struct([("type", pa.int8()), ("size", pa.int32()), *lists]))


def test_columns_lists_and_vectors_are_rows() -> None:
    form = Form(2, "float64")
    expected = [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    vector = vectors([1.0, 4.0], (2, {0: 2.0, 1: 5.0}), [3.0, 6.0])
    lists = [pa.array(expected, kind(pa.float64())) for kind in (pa.list_, pa.large_list)]
    lists.append(pa.array(expected, pa.list_(pa.float64(), 2)))
    for one in (
        batch(a=[1, 2, 3], b=[4.0, 5.0, 6.0]),
        batch(v=vector),
        *(batch(r=x) for x in lists),
    ):
        assert dense_rows(one, form).tolist() == expected
        assert dense_rows(one.slice(1), form).tolist() == expected[1:]


@pytest.mark.parametrize(
    ("table", "check", "words"),
    [
        (batch(a=[1.0, None], b=[1.0, 2.0]), "bridge-null", {"column": "a", "row": 11}),
        (batch(r=pa.array([[1.0, 2.0], None])), "bridge-null", {"row": 11}),
        (batch(r=pa.array([[1.0, 2.0], [3.0, None]])), "bridge-null", {"row": 11}),
        (batch(a=[1.0, 2.0], b=[1.0, np.nan]), "bridge-nan", {"row": 11, "column": 1}),
        (batch(r=pa.array([[1.0, 2.0], [3.0]])), "bridge-ragged", {"row": 11, "length": 1}),
        (batch(a=[1.0]), "bridge-ragged", {"length": 1}),
        (batch(v=vectors([1.0, 2.0], (3, {0: 1.0}))), "bridge-ragged", {"row": 11, "length": 3}),
        (batch(r=pa.array([["x", "y"]])), "bridge-column-type", {"kind": "string"}),
    ],
)
def test_what_is_no_matrix_is_refused_with_its_place(table, check: str, words: dict) -> None:
    with pytest.raises(WireError) as caught:
        dense_rows(table, Form(2, "float64"), begin=10)
    assert caught.value.check == check
    assert {key: caught.value.fields[key] for key in words} == words


@given(st.lists(st.lists(st.sampled_from([0.0, 1.5, -2.0]), min_size=4, max_size=4)), st.data())
def test_vectors_of_both_kinds_are_csr(rows: list[list[float]], data: st.DataObject) -> None:
    mixed = [
        row if data.draw(st.booleans()) else (4, {i: x for i, x in enumerate(row) if x})
        for row in rows
    ]
    begin = data.draw(st.integers(0, len(rows)))
    form = Form(4, "float32", sparse=True)
    indptr, indices, values = sparse_rows(vectors(*mixed).slice(begin), form)
    made = sparse.csr_array((values, indices, indptr), shape=(len(rows) - begin, 4))
    assert made.toarray().tolist() == rows[begin:] and values.dtype == np.float32


@pytest.mark.parametrize(
    ("column", "check", "words"),
    [
        (vectors((3, {1: 1.0}), (4, {})), "bridge-ragged", {"row": 1, "length": 4, "cols": 3}),
        (vectors((3, {}), [1.0]), "bridge-ragged", {"row": 1, "length": 1}),
        (vectors((3, {}), (3, {0: 1.0, 2: np.nan})), "bridge-nan", {"row": 1, "column": 2}),
        (vectors([0.0, 1.0, np.nan], (3, {})), "bridge-nan", {"row": 0, "column": 2}),
        (pa.concat_arrays([vectors((3, {})), pa.nulls(1, vectors().type)]), "bridge-null", {"row": 1}),
    ],
)  # fmt: skip
def test_vectors_that_are_no_rows_are_refused_with_their_place(column, check, words) -> None:
    with pytest.raises(WireError) as caught:
        sparse_rows(column, Form(3, "float64", sparse=True))
    assert caught.value.check == check
    assert {key: caught.value.fields[key] for key in words} == words


def test_nan_may_be_allowed_and_infinity_always_is() -> None:
    values = np.array([[1.0, np.nan]])
    assert np.isnan(
        dense_rows(batch(a=[1.0], b=[np.nan]), Form(2, "float64", allow_nan=True))[0, 1]
    )
    without_nan(values, Form(2, "float64", allow_nan=True))
    without_nan(np.array([[np.inf, -np.inf], [1e308, 1e308]]), Form(2, "float64"))
    without_nan(np.array([[1, 2]]), Form(2, "int64"))
    with pytest.raises(WireError):
        without_nan(np.array([[np.inf, -np.inf], [0, np.nan]]), Form(2, "float64"))


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["float"], "float32"), (["halffloat", "float"], "float32"), (["float", "double"], "float64"),
        (["int32"], "int32"), (["int8", "bool"], "int32"), (["int32", "int64"], "int64"), (["uint32"], "int64"),
        (["uint64"], "float64"), (["float", "int32"], "float64"),
    ],
)  # fmt: skip
def test_the_type_of_a_matrix_holds_that_of_each_column(kinds: list[str], expected: str) -> None:
    made = [
        pa.bool_() if k == "bool" else pa.float16() if k == "halffloat" else pa.type_for_alias(k)
        for k in kinds
    ]
    assert common_dtype(made) == expected


@pytest.mark.parametrize("kind", [pa.string(), pa.decimal128(10, 2), pa.timestamp("us"), pa.null()])
def test_what_is_no_number_is_named(kind: pa.DataType) -> None:
    with pytest.raises(WireError) as caught:
        common_dtype([pa.int32(), kind])
    assert caught.value.fields == {"column": 1, "kind": str(kind)}


def test_pandas_frames_keep_their_types_and_refuse_missing_values() -> None:
    from fairlead.bridge.client.send import SendOptions, _source

    source = _source(pd.DataFrame({"a": [1, 2], "b": [3.5, 4.5]}), SendOptions())
    assert source.form == Form(2, "float64") and source.names == ("a", "b")
    assert [c[0].tolist() for c in source.chunks(0, 2)] == [[[1.0, 3.5], [2.0, 4.5]]]
    assert _source(pd.DataFrame({"a": np.float32([1])}), SendOptions()).form.dtype == "float32"
    with pytest.raises(WireError) as caught:
        _source(pd.DataFrame({"a": pd.array([1, None], "Int64")}), SendOptions())
    assert caught.value.check == "bridge-null" and caught.value.fields["row"] == 1
    with pytest.raises(WireError) as caught:
        list(_source(pd.DataFrame({"a": [1.0, None]}), SendOptions()).chunks(0, 2))
    assert caught.value.check == "bridge-nan"
    with pytest.raises(WireError) as caught:
        _source(pd.DataFrame({"a": ["x"]}), SendOptions())
    assert caught.value.check == "bridge-column-type" and caught.value.fields["column"] == "a"
