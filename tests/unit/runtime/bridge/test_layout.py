"""Where rows and blocks lie; that matrices move bit for bit between ranks is tests/system/test_bridge_linalg.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.bridge.layout import BlockCyclic, BlockRows, Cyclic, grid

LENGTHS, BLOCKS, SIZES = st.integers(0, 200), st.integers(1, 70), st.integers(1, 7)


@given(LENGTHS, BLOCKS, SIZES)
def test_every_index_of_a_cyclic_dimension_has_one_owner_and_one_place(length, block, processes):
    dimension = Cyclic(length, block, processes)
    parts = [dimension.indices(process) for process in range(processes)]
    assert sorted(np.concatenate(parts)) == list(range(length))
    for process, part in enumerate(parts):
        assert len(part) == dimension.count(process)
        assert list(dimension.local(part)) == list(range(len(part)))


@given(LENGTHS, BLOCKS, SIZES, st.data())
def test_indices_of_a_range_are_those_of_all_that_lie_in_it(length, block, processes, data):
    begin = data.draw(st.integers(0, length))
    end = data.draw(st.integers(begin, length))
    dimension = Cyclic(length, block, processes)
    for process in range(processes):
        every = dimension.indices(process)
        inside = every[(every >= begin) & (every < end)]
        assert np.array_equal(dimension.indices(process, begin, end), inside)


def test_rows_are_dealt_as_scalapack_deals_them():
    # ScaLAPACK Users' Guide: row i is on process floor(i / block) mod processes.
    dimension = Cyclic(9, 2, 2)
    assert [int(n) for n in dimension.indices(0)] == [0, 1, 4, 5, 8]
    assert [int(n) for n in dimension.indices(1)] == [2, 3, 6, 7]
    assert [dimension.count(process) for process in range(2)] == [5, 4]


@given(LENGTHS, SIZES)
def test_even_rows_differ_by_one_at_most(rows, size):
    layout = BlockRows.even(rows, size)
    assert layout.rows == rows and max(layout.counts) - min(layout.counts) <= 1
    assert [layout.range(rank)[0] for rank in range(1, size)] == [
        layout.range(rank)[1] for rank in range(size - 1)
    ]


@given(LENGTHS, LENGTHS, BLOCKS, st.integers(1, 12))
def test_grid_uses_all_ranks_and_their_parts_are_the_matrix(rows, columns, block, size):
    down, across = grid(size)
    assert down * across == size and down <= across
    layout = BlockCyclic(rows, columns, block, down, across)
    shapes = [layout.shape(rank) for rank in range(size)]
    assert sum(height * width for height, width in shapes) == rows * columns


@pytest.mark.parametrize("size", [4, 6, 12])
def test_grid_is_as_square_as_it_can_be(size):
    assert grid(size) == {4: (2, 2), 6: (2, 3), 12: (3, 4)}[size]


def test_rank_beyond_the_grid_has_nothing():
    layout = BlockCyclic(10, 10, 2, 1, 3)
    assert layout.place(3) is None and layout.shape(3) == (0, 0)
