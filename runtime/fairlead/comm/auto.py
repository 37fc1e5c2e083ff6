"""A serial script on many ranks, with no line changed: ``python3 -m fairlead.comm.auto SCRIPT ARGS…``.

Keras: what ``compile`` is given averages gradients, ``fit`` trains on this rank's part of the data, starts
from rank 0's weights and averages metrics. torch: optimizers average gradients, loaders that shuffle give
this rank's part. Either: only rank 0 writes models, and prints. What cannot be shared out is refused:
each rank would else train on all of the data, or a separate model, without any sign of it.

A step of N ranks is one on a batch N times as large. The learning rate is left as it is.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from fairlead import comm
from fairlead.base.errors import fail

# Callbacks of Keras that write files.
_WRITERS = (
    "BackupAndRestore",
    "CSVLogger",
    "ModelCheckpoint",
    "RemoteMonitor",
    "SwapEMAWeights",
    "TensorBoard",
)
_done: set[str] = set()  # what was shared out: "gradients", "data"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script as ``python3 SCRIPT ARGS…`` would."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        raise SystemExit(f"usage: python3 -m fairlead.comm.auto SCRIPT [ARGS]\n\n{__doc__}")
    if not os.path.isfile(words[0]):  # noqa: PTH113, every rank would import pathlib for it
        raise fail("auto-script", words=words[0])
    ranks = comm.init()
    sys.meta_path.insert(0, _AfterImport({"keras": patch_keras, "torch": patch_torch}))
    for name, patch in (("keras", patch_keras), ("torch", patch_torch)):
        if name in sys.modules:
            patch(sys.modules[name])
    if ranks.rank:
        # A serial script's words, once.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.argv = words
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))  # noqa: PTH120, PTH100
    runpy.run_path(words[0], run_name="__main__")
    if ranks.size > 1 and _done != {"gradients", "data"}:
        raise fail("auto-nothing", script=words[0])
    comm.finalize()


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Patches a module as soon as it is imported."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]):
        self._patches = patches
        self._loaders: dict[str, Any] = {}

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._patches or name in self._loaders:
            return None
        self._loaders[name] = None  # the question below comes here again
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            del self._loaders[name]
            return None
        self._loaders[name], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loaders[spec.name].create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        loader = self._loaders[name]
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = loader
        loader.exec_module(module)
        self._patches[name](module)


def _before(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """``owner.name`` becomes ``change(original, self, *args, **kwargs)``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(original, *args, **kwargs)

    setattr(owner, name, changed)


def _on_rank_0(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs) if comm.rank() == 0 else None


# --- Keras -----------------------------------------------------------------------------------


def patch_keras(keras: Any) -> None:
    """Makes ``compile``, ``fit`` and what writes models those of many ranks."""
    if comm.size() == 1:
        return
    # The same on all ranks, so that what a script shuffles is shuffled alike and shared out once.
    keras.utils.set_random_seed(0)
    _before(keras.Model, "compile", _compile)
    _before(keras.Model, "fit", functools.partial(_fit, keras))
    for name in ("save", "save_weights", "export"):
        _before(keras.Model, name, _on_rank_0)


def _compile(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> None:
    from fairlead.comm.keras import DistributedOptimizer

    original(model, *args, **kwargs)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer)


def _fit(keras: Any, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    from fairlead.comm.keras import AverageMetrics, Broadcast

    # The wrapper has the signature of what it wraps.
    call = inspect.signature(original).bind(model, *args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    _share(keras, given)
    callbacks = [] if given["callbacks"] is None else given["callbacks"]
    if not isinstance(callbacks, Sequence):
        callbacks = [callbacks]
    if any(type(c).__name__ == "BackupAndRestore" for c in callbacks):
        raise fail("auto-data-backup-and-restore")
    kept = [c for c in callbacks if comm.rank() == 0 or type(c).__name__ not in _WRITERS]
    given["callbacks"] = [Broadcast(), AverageMetrics(), *kept]
    if comm.rank():
        given["verbose"] = 0
    else:
        _say(given)
    _done.update(("gradients", "data"))
    return original(*call.args, **call.kwargs)


def _say(given: dict[str, Any]) -> None:
    each = given["batch_size"]
    batch = (
        f"batches of {each} a rank, {each * comm.size()} in all"
        if each
        else "each rank its batches"
    )
    sys.stderr.write(
        f"fairlead.comm.auto: {comm.size()} ranks train together: {batch}; the learning rate is not"
        " scaled\n"
    )


def _share(keras: Any, given: dict[str, Any]) -> None:
    """Replaces the data of a ``fit`` by this rank's part."""
    rank, size, x = comm.rank(), comm.size(), given["x"]
    kind = type(x).__name__
    if isinstance(x, keras.utils.PyDataset):
        if len(x) < size:
            raise fail("auto-data-too-few-batches", kind=kind, x_count=len(x), size=size)
        given["x"] = _part_of(keras, x, rank, size)
    elif hasattr(x, "cardinality") and hasattr(x, "shard"):  # tf.data.Dataset
        known = int(x.cardinality())
        steps = given["steps_per_epoch"]
        if known < 0 and steps is None:
            raise fail("auto-data-dataset-unknown-length")
        if 0 <= known < size:
            raise fail("auto-data-dataset-too-short", known=known, size=size)
        part = x.shard(size, rank)
        given["x"] = part.take(known // size) if known >= 0 else part
        if steps is not None:  # an epoch stays once through the data
            given["steps_per_epoch"] = max(steps // size, 1)
    elif kind == "DataLoader":
        if not getattr(x, _MARK, False):
            raise fail("auto-data-unshuffled-loader")
    elif x is None or hasattr(x, "__next__") or inspect.isgeneratorfunction(x):
        raise fail("auto-data-unknown-kind", kind=kind)  # fmt: skip
    else:
        _share_arrays(keras, given, rank, size)


def _share_arrays(keras: Any, given: dict[str, Any], rank: int, size: int) -> None:
    trees = {name: given[name] for name in ("x", "y", "sample_weight") if given[name] is not None}
    lengths = {len(leaf) for tree in trees.values() for leaf in keras.tree.flatten(tree)}
    if len(lengths) != 1:
        return  # Keras itself says what is wrong
    (count,) = lengths
    split = given["validation_split"]
    train = count
    if (
        split and given["validation_data"] is None
    ):  # as Keras splits, before the data are shared out
        train = int(count * (1.0 - split))
        held = [keras.tree.map_structure(lambda a: a[train:], t) for t in trees.values()]
        given["validation_data"], given["validation_split"] = tuple(held), 0.0
    if train < size:
        raise fail("auto-data-too-few-samples", train=train, size=size)
    whole = train // size * size
    for name, tree in trees.items():
        given[name] = keras.tree.map_structure(lambda a: a[rank:whole:size], tree)


def _part_of(keras: Any, whole: Any, rank: int, size: int) -> Any:
    class Part(keras.utils.PyDataset):  # type: ignore[misc]
        """Every ``size``-th batch."""

        def __len__(self) -> int:
            return len(whole) // size

        def __getitem__(self, index: int) -> Any:
            return whole[index * size + rank]

        def on_epoch_end(self) -> None:
            whole.on_epoch_end()

    return Part()


# --- torch -----------------------------------------------------------------------------------

_MARK = "_fairlead_part"


def patch_torch(torch: Any) -> None:
    """Makes optimizers, loaders that shuffle and ``torch.save`` those of many ranks."""
    if comm.size() == 1:
        return
    # Models begin alike; the first step compares them.
    torch.manual_seed(0)
    import torch.utils.data as data

    _before(data.DataLoader, "__init__", functools.partial(_loader, data))
    _before(data.DataLoader, "__iter__", functools.partial(_epoch, torch))
    _before(torch.optim.Optimizer, "__init__", _optimizer)
    _before(torch, "save", _on_rank_0)


def _loader(
    data: Any, original: Callable[..., Any], loader: Any, dataset: Any, *args: Any, **kwargs: Any
) -> None:
    call = inspect.signature(original).bind(loader, dataset, *args, **kwargs)
    given = call.arguments
    if isinstance(dataset, data.IterableDataset):
        raise fail("auto-data-iterable-dataset")  # fmt: skip
    chosen = given.get("sampler") is not None or given.get("batch_sampler") is not None
    shared = bool(given.get("shuffle")) and not chosen
    if shared:
        # Repeats a few samples where they do not come out even: every rank has as many batches.
        given["sampler"] = data.DistributedSampler(dataset, comm.size(), comm.rank(), shuffle=True)
        given["shuffle"] = None
    original(*call.args, **call.kwargs)
    if shared:
        setattr(loader, _MARK, 0)


def _epoch(torch: Any, original: Callable[..., Any], loader: Any) -> Any:
    epoch = getattr(loader, _MARK, None)
    if epoch is not None:
        loader.sampler.set_epoch(epoch)
        setattr(loader, _MARK, epoch + 1)
        if "data" not in _done:
            torch.manual_seed(comm.rank())  # dropout and the like: other masks on each rank
        _done.add("data")
    return original(loader)


def _optimizer(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> None:
    from fairlead.comm.torch import DistributedOptimizer

    original(optimizer, *args, **kwargs)
    optimizer.register_step_pre_hook(_step)
    DistributedOptimizer(optimizer)


def _step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if "data" not in _done:
        raise fail("auto-data-no-loader")
    _done.add("gradients")


if __name__ == "__main__":
    main()
