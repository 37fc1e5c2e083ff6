"""Keras: ``compile`` and ``fit`` of many ranks; an update that is made elsewhere is refused."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.auto import files, held, seeds, shared
from fairlead.comm.auto.shared import before, done, fitting, in_fit, own_loop, owner
from fairlead.comm.auto.torch import part_of
from fairlead.comm.frameworks import common

# Callbacks of Keras that write files.
_WRITERS = (
    "BackupAndRestore",
    "CSVLogger",
    "ModelCheckpoint",
    "RemoteMonitor",
    "TensorBoard",
)
_SCHEDULE = (
    "the learning rate follows a schedule by steps, of which an epoch has an N-th on N ranks: one that counts on those of one"
    " process does not come to its end. Divide its number of steps by the ranks (docs/tutorials/training.md)"
)
_BATCH = 32  # of a `fit` that is not given one
_averaged = threading.local()


def patch(keras: Any) -> None:
    """Makes ``compile``, ``fit`` and what writes models those of many ranks, and refuses other updates."""
    # The same on all ranks, so that what a script shuffles is shuffled alike and shared out once.
    with seeds.kept():
        keras.utils.set_random_seed(0)
    shared.ends_together()
    for name, change in (
        ("compile", _compile),
        ("fit", functools.partial(_fit, keras)),
        ("save", _save),
        ("save_weights", _save),
        ("export", _save),
        ("load_weights", _load_weights),
        ("evaluate", _on_all),
        ("predict", _on_all),
    ):
        before(owner(keras.Model, name), name, change)
    _patch_load_model(keras)
    before(keras.random.SeedGenerator, "next", _draw)
    # Every update of Keras 3 comes through it, and a LossScaleOptimizer's before its inner one's.
    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        before(kind, "apply", _apply)


def _draw(original: Callable[..., Any], generator: Any, *args: Any, **kwargs: Any) -> Any:
    """In a ``fit``, of dropout and the like, each rank draws its own numbers; what they come from stays alike."""
    seed = original(generator, *args, **kwargs)
    if not in_fit() or not comm.rank():
        return seed
    backend = generator.backend
    apart = backend.convert_to_tensor([comm.rank() * shared.APART, 0], dtype=generator.state.dtype)
    return backend.numpy.add(seed, apart)


def _patch_load_model(keras: Any) -> None:
    """In each of Keras' modules that have the function under its name."""
    own = keras.saving.load_model
    before(keras.saving, "load_model", files.load)
    for name, module in list(sys.modules.items()):
        if name.startswith("keras.") and vars(module).get("load_model") is own:
            setattr(module, "load_model", keras.saving.load_model)  # noqa: B010


def _save(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> None:
    call = inspect.signature(original).bind(model, *args, **kwargs)
    given = call.arguments
    again = given.get("overwrite", True) and given.get("zipped", True) is not False

    def write(path: Any) -> None:
        given["filepath"] = path
        original(*call.args, **call.kwargs)

    files.save(given["filepath"], write, whole=again)


def _on_all(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Without gradients, so that a DataLoader gives all samples."""
    torch: Any = sys.modules.get("torch")
    with torch.no_grad() if hasattr(torch, "no_grad") else nullcontext():
        return original(model, *args, **kwargs)


def _load_weights(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    path = inspect.signature(original).bind(model, *args, **kwargs).arguments["filepath"]
    files.wait_for(path)
    return original(model, *args, **kwargs)


def _compile(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> None:
    from fairlead.comm.keras import DistributedOptimizer

    original(model, *args, **kwargs)
    if getattr(model, "optimizer", None) is not None:
        before(DistributedOptimizer(model.optimizer), "apply", functools.partial(_in_fit, model))


def _in_fit(model: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ``compile`` was given averages wherever it is applied, data are shared out by ``fit`` alone."""
    if not in_fit():
        raise own_loop(f"{type(model.optimizer).__name__}.apply")
    return original(*args, **kwargs)


def _apply(
    original: Callable[..., Any],
    optimizer: Any,
    grads: Any,
    trainable_variables: Any = None,
    **kwargs: Any,
) -> Any:
    """In a ``fit``, other optimizers than what ``compile`` was given average as well."""
    from fairlead.comm.keras import averages, mean_gradients

    outermost = not getattr(_averaged, "now", False)
    if outermost and not averages(optimizer):
        if not in_fit():
            raise own_loop(f"{type(optimizer).__name__}.apply")
        grads = mean_gradients(optimizer, grads, trainable_variables)
    _averaged.now = True
    try:
        return original(optimizer, grads, trainable_variables, **kwargs)
    finally:
        _averaged.now = not outermost


def _fit(keras: Any, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    from fairlead.comm.keras import AverageMetrics, Broadcast

    # The wrapper has the signature of what it wraps.
    call = inspect.signature(original).bind(model, *args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    _require_stateless(keras, model)
    _share(keras, given)
    callbacks = [] if given["callbacks"] is None else given["callbacks"]
    if not isinstance(callbacks, Sequence):
        callbacks = [callbacks]
    if any(isinstance(c, keras.callbacks.BackupAndRestore) for c in callbacks):
        raise fail("auto-data-backup-and-restore")
    kept = [c for c in callbacks if comm.rank() == 0 or type(c).__name__ not in _WRITERS]
    given["callbacks"] = [Broadcast(), AverageMetrics(), *kept]
    if comm.rank():
        given["verbose"] = 0
    else:
        _say(given)
        _say_of_schedule(keras, model)
        _say_of_sums(keras, model)  # TensorFlow's eager steps show no sums
    done.update(("gradients", "data"))
    rows = given["batch_size"] or getattr(given["x"], "batch_size", None) or _BATCH
    with fitting(model, rows):
        history = original(*call.args, **call.kwargs)
    if any(type(c).__name__ in _WRITERS for c in callbacks):
        shared.meet()
    return history


def _require_stateless(keras: Any, model: Any) -> None:
    """Refuses a state that goes from one batch to the next one, whose samples are another rank's."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise fail("auto-data-stateful", layer=layer.name)


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


def _say_of_schedule(keras: Any, model: Any) -> None:
    rate = getattr(getattr(model, "optimizer", None), "_learning_rate", None)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        shared.say_once(_SCHEDULE)


def _say_of_sums(keras: Any, model: Any) -> None:
    losses = keras.tree.flatten(getattr(model, "loss", None))
    if any(getattr(loss, "reduction", "") == "sum" for loss in losses):
        shared.say_once(shared.SUMS)


def _say_of_rest(count: int, what: str) -> None:
    """What is left out of each epoch, by one rank."""
    if comm.rank() == 0 and count % comm.size():
        left = f"{count % comm.size()} of {count} {what}"
        common.say(f"{left} are left out of each epoch: every rank takes as many")


def _share(keras: Any, given: dict[str, Any]) -> None:
    """Replaces the data of a ``fit`` by this rank's part."""
    rank, size, x = comm.rank(), comm.size(), given["x"]
    kind = type(x).__name__
    held.require_alike(_held(keras, given), "model.fit")
    if isinstance(x, keras.utils.PyDataset):
        if len(x) < size:
            raise fail("auto-data-too-few-batches", kind=kind, x_count=len(x), size=size)
        _say_of_rest(len(x), "batches")
        given["x"] = _part_of(keras, x, rank, size)
    elif hasattr(x, "cardinality") and hasattr(x, "shard"):  # tf.data.Dataset
        known = int(x.cardinality())
        if known < 0 and given["steps_per_epoch"] is None:
            raise fail("auto-data-dataset-unknown-length")
        if 0 <= known < size:
            raise fail("auto-data-dataset-too-short", known=known, size=size)
        _say_of_rest(max(known, 0), "batches")
        part = x.shard(size, rank)
        given["x"] = part.take(known // size) if known >= 0 else part
    elif kind == "DataLoader":
        _require_part(x, given["validation_data"])
    elif x is None or hasattr(x, "__next__") or inspect.isgeneratorfunction(x):
        raise fail("auto-data-unknown-kind", kind=kind)  # fmt: skip
    else:
        _share_arrays(keras, given, rank, size)
    if steps := given["steps_per_epoch"]:  # an epoch has as many samples as in one process
        _say_of_rest(steps, "steps")
        given["steps_per_epoch"] = max(steps // size, 1)


def _require_part(loader: Any, held_out: Any) -> None:
    """Refuses a DataLoader that is not shared out; one for validation gives all samples."""
    if part_of(loader) is None:
        raise fail("auto-data-unshuffled-loader")
    if (part := part_of(held_out)) is not None:
        part.whole = True  # Keras counts its batches while gradients are enabled


def _held(keras: Any, given: dict[str, Any]) -> list[held.Part]:
    """What the ranks must hold alike of the data of a ``fit``."""
    x = given["x"]
    if isinstance(x, keras.utils.PyDataset):
        return held.of_dataset(x)
    if type(x).__name__ == "DataLoader":
        return held.of_dataset(x.dataset)
    if hasattr(x, "cardinality") and hasattr(x, "shard"):
        return [held.Part("the number of batches", str(int(x.cardinality()))), *held.of_pipeline(x)]
    leaves = [(n, leaf) for n, tree in _trees(given).items() for leaf in keras.tree.flatten(tree)]
    return [part for name, leaf in leaves for part in held.of_value(leaf, f"`{name}`")]


def _trees(given: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a ``fit``, by the name of their parameter."""
    return {name: given[name] for name in ("x", "y", "sample_weight") if given[name] is not None}


def _share_arrays(keras: Any, given: dict[str, Any], rank: int, size: int) -> None:
    trees = _trees(given)
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
    _say_of_rest(train, "samples")
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

        def on_epoch_begin(self) -> None:
            whole.on_epoch_begin()

        def on_epoch_end(self) -> None:
            whole.on_epoch_end()

    return Part()
