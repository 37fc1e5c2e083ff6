"""Whether the ranks hold the same data: samples are shared out by their index, which must mean the same on each.

Looked at is what is cheap and cannot be an augmentation: lengths, indices, names of files, some rows of arrays. No sample
of a dataset is made for it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairlead import comm
from fairlead.base.errors import fail

_ROWS, _VALUES = 64, 64  # of an array that are looked at; values of a row
_WORDS = 256  # elements of a list that are looked at
_SEEDS = ("_seed", "_seed2")  # of a stage of a tf.data.Dataset
_DEEP = 4  # datasets within datasets
_ARRAYS = ("h5py", "jax", "jaxlib", "numpy", "tensorflow", "torch")


class Part(NamedTuple):
    """What is compared of one thing that a rank holds.

    Attributes:
        words: equal on all ranks.
        values: floats, nearly equal: other processors round otherwise.
    """

    name: str
    words: str
    values: Any = None


_known: dict[int, tuple[Callable[[], Any], list[Part]]] = {}


def is_new(dataset: Any) -> bool:
    """Whether :func:`of_dataset` has not seen it."""
    known = _known.get(id(dataset))
    return known is None or known[0]() is not dataset


def of_dataset(dataset: Any, deep: int = _DEEP) -> list[Part]:
    """What a dataset held when it was first seen; afterwards it may keep what this rank has read."""
    if is_new(dataset):
        parts = list(_of_dataset(dataset, deep))
        try:
            here: Callable[[], Any] = weakref.ref(dataset)
        except TypeError:
            here = lambda: dataset  # noqa: E731
        _known[id(dataset)] = here, parts
    return _known[id(dataset)][1]


def _of_dataset(dataset: Any, deep: int) -> Iterator[Part]:
    kind = type(dataset).__name__
    try:
        yield Part(f"the length of {kind}", str(len(dataset)))
    except Exception:  # it has none, or not yet
        return
    if isinstance(dataset, (list, tuple)):
        yield from of_value(dataset, f"the elements of a {kind}")
        return
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        several = value if isinstance(value, (list, tuple)) else [value]
        if deep and several and all(map(_is_dataset, several)):
            for each in several[:_ROWS]:
                yield from of_dataset(each, deep - 1)
        else:
            yield from of_value(value, f"`{name}` of {kind}")


def _is_dataset(value: Any) -> bool:
    kind = type(value)
    whole = hasattr(kind, "__len__") and hasattr(kind, "__getitem__") and hasattr(value, "__dict__")
    return whole and not _is_array(value) and not hasattr(value, "iloc")


def of_value(value: Any, name: str) -> Iterator[Part]:
    """An array, a table, a list of plain values or of arrays; of anything else nothing."""
    try:
        if hasattr(value, "iloc") and hasattr(value, "index"):  # pandas
            rows = _spread(len(value), _ROWS)
            words = [(_word(value.index[i]), repr(value.iloc[i].tolist())) for i in rows]
            yield Part(name, repr((len(value), words)))
        elif _is_array(value):
            yield _of_array(value, name)
        elif isinstance(value, (list, tuple)) and value and all(map(_is_array, value[:_ROWS])):
            for i, each in enumerate(value[:_ROWS]):
                yield _of_array(each, f"array {i} of {name}")
        elif isinstance(value, (list, tuple, range)):
            yield Part(name, repr((len(value), [_word(value[i]) for i in _spread(len(value))])))
    except Exception:  # what cannot be looked at is not compared
        return


def _is_array(value: Any) -> bool:
    shaped = hasattr(value, "shape") and hasattr(value, "dtype")
    ours = isinstance(value, np.ndarray) or type(value).__module__.partition(".")[0] in _ARRAYS
    return shaped and (ours or hasattr(value, "detach"))


def _of_array(array: Any, name: str) -> Part:
    shape = tuple(map(int, array.shape))
    rows = [_row(array[i]) for i in _spread(shape[0], _ROWS)] if shape else [_row(array)]
    whole = np.concatenate(rows) if rows else np.zeros(0)
    words = f"{shape} {array.dtype}"
    if whole.dtype.kind == "f":
        return Part(name, words, np.nan_to_num(whole.astype(np.float64), posinf=0.0, neginf=0.0))
    return Part(name, f"{words} {[_word(each) for each in whole.tolist()]}")


def _row(row: Any) -> Any:
    if hasattr(row, "detach"):
        row = row.detach().cpu()
        row = row.float() if row.is_floating_point() else row
    flat = np.asarray(row).reshape(-1)
    return flat[:: max(1, -(-flat.size // _VALUES))]


def _spread(count: int, most: int = _WORDS) -> Sequence[int]:
    return range(0, count, max(1, -(-count // most)))


def _word(value: Any) -> Any:
    """What is plain; of a file its name alone, for each rank may have its own temporary folder.

    Raises:
        TypeError: it is not plain.
    """
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        return os.path.basename(text) if os.path.isabs(text) else text  # noqa: PTH117, PTH119
    if isinstance(value, (bool, int, bytes, complex)):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, np.generic):
        return _word(value.item())
    if isinstance(value, (list, tuple)):
        return [_word(each) for each in value[:_VALUES]]
    if isinstance(value, dict):
        return [(_word(key), _word(each)) for key, each in value.items()]
    if _is_array(value):
        return [_word(each) for each in _row(value).tolist()]
    raise TypeError(type(value).__name__)


def of_pipeline(dataset: Any) -> list[Part]:
    """The arrays at the beginning of a ``tf.data.Dataset``, and the seeds by which it shuffles and draws."""
    parts: list[Part] = []
    try:
        ahead = [dataset]
        for number in range(_ROWS):
            if not ahead:
                break
            stage = ahead.pop()
            for i, tensor in enumerate(getattr(stage, "_tensors", ())):
                parts += of_value(tensor, f"array {i} of {type(stage).__name__} {number}")
            if seeds := [int(getattr(stage, each)) for each in _SEEDS if hasattr(stage, each)]:
                parts.append(Part(f"the seed of {type(stage).__name__} {number}", str(seeds)))
            ahead += stage._inputs()
    except Exception:  # of another release
        return []
    return parts


def require_alike(parts: Sequence[Part], where: str) -> None:
    """Compares over ranks. Collective.

    Raises:
        FairleadError: they hold other data.
    """
    from fairlead.comm.frameworks.common import match as matching

    ranks = comm.init()
    words = [np.frombuffer(f"{part.name}\0{part.words}".encode(), np.uint8) for part in parts]
    match = matching(ranks, words, f"training data in {where}")
    odd, others = match.first, ", ".join(map(str, match.ranks))
    if odd is None:
        odd, others = _first_odd(parts), "unlike the others"
    if odd is not None:
        name = parts[odd].name if odd < len(parts) else "what it consists of"
        raise fail("auto-data-differs", name=name, where=where, ranks=others)


def _first_odd(parts: Sequence[Part]) -> int | None:
    """The first part whose floats differ; the ranks have as many."""
    from fairlead.comm.frameworks.common import of_each_rank

    held = [(i, part.values) for i, part in enumerate(parts) if part.values is not None]
    if not held:
        return None
    ranks = comm.init()
    (means,) = ranks.aggregate([np.concatenate([values for _, values in held])], any_values=True)
    first, begin = len(parts), 0
    for i, values in held:
        mean, begin = means[begin : begin + values.size], begin + values.size
        if (
            values.size
            and np.abs(values - mean).max() > 1e-3 * np.ptp(values) + 1e-6 * np.abs(values).max()
        ):
            first = i
            break
    first = min(of_each_rank(ranks, first))
    return first if first < len(parts) else None
