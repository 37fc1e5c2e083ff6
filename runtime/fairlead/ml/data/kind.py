"""How the data of a model are declared: what generates samples, and how they lie in files.

A declaration is read on login nodes without NumPy, so modules that import it are named: :func:`later`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.ml.data.formats import Form
    from fairlead.ml.data.samples import Samples


@dataclass(frozen=True)
class DataKind:
    """A synthetic data set.

    Attributes:
        name: files begin with it.
        version: of the generator: a change of any number in it must change this one, and regenerates the data.
        size: pixels or voxels along each edge, unless another is requested.
        make: seed, split, index of the shard, samples, size, to the samples of one shard.
        data_set: of the first form of that name, files are written.
        forms: the ways in which such samples lie in files, those of other authors among them; none where another
            kind declares them.
        per_shard: samples in a file, unless another number is requested: all of them are in memory at once.
    """

    name: str
    version: int
    size: int
    make: Callable[[int, str, int, int, int], Samples]
    data_set: str
    forms: Callable[[], tuple[Form, ...]] = tuple
    per_shard: int = 500


def later(module: str, name: str) -> Callable[..., Any]:
    """``name`` of ``module``, a function, which is imported when it is called."""
    return lambda *arguments: getattr(import_module(module), name)(*arguments)
