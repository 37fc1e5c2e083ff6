"""Values that training can use: finite, and such as the type in memory can hold.

NumPy casts what does not fit without an error: NaN to the lowest integer, 2^40 to 0, 0.5 to 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Unfit(ValueError):
    """A value that does not fit.

    Attributes:
        row: of the first one, along the first dimension.
    """

    def __init__(self, row: int, value: object, why: str):
        self.row = row
        super().__init__(f"{value}, {why}")


def fitted(values: Array, dtype: npt.DTypeLike) -> Array:
    """``values`` in ``dtype``, a float or an integer; the same array if it has that type already.

    Floating-point numbers are rounded, never to an infinity; integers stay what they are.

    Args:
        values: (n, ...), integers or floating-point numbers.
    Raises:
        Unfit: one is not finite, or ``dtype`` cannot hold it.
    """
    kind = np.dtype(dtype)
    with np.errstate(all="ignore"):
        cast = values.astype(kind, copy=False)
        bad = _odd_floats(cast) if kind.kind == "f" else _odd_integers(values, kind)
    if bad is None or not bad.any():
        return cast
    place = np.unravel_index(int(bad.argmax()), bad.shape)
    value = values[place]
    finite = bool(np.isfinite(value))
    why = f"which {kind.name} cannot hold" if finite or kind.kind != "f" else "which is not finite"
    raise Unfit(int(place[0]), value, why)


def _odd_floats(cast: Array) -> npt.NDArray[np.bool_] | None:
    """Where ``cast`` is not finite; None if it is everywhere."""
    # A sum passes every NaN and infinity on, at the speed of memory; a finite one clears all values.
    total = cast.sum(dtype=np.float32 if cast.dtype.itemsize < 4 else None)
    return None if np.isfinite(total) else ~np.isfinite(cast)


def _odd_integers(values: Array, kind: np.dtype[Any]) -> npt.NDArray[np.bool_] | None:
    """Where ``values`` are not integers that ``kind`` holds; None if their type already is narrower."""
    if np.can_cast(values.dtype, kind):
        return None
    limits = np.iinfo(kind)
    odd: npt.NDArray[np.bool_]
    if values.dtype.kind != "f":
        low = False if values.dtype.kind == "u" else values < limits.min
        odd = low | (values > limits.max)
        return odd
    # The limit itself is not a float32: 2^31 - 1 would become 2^31. Comparisons with a NaN are False.
    held = (values >= float(limits.min)) & (values < float(limits.max) + 1)
    odd = ~(held & (values == np.trunc(values)))
    return odd
