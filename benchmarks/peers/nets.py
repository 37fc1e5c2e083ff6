"""The networks that every library is measured with, by their trainable tensors; for TensorFlow and for torch.

HEP-CNN on 224x224x3 (594,178 weights), a CosmoFlow on 64^3x4 (3,283,060), ResNet-50 v2 with 1001 classes on
64x64x3 (25,551,401): gradients of 2.4, 13 and 102 MB. Sources: Kurth et al., "Deep Learning at 15PF"
(arXiv:1708.05256); Mathuriya et al., "CosmoFlow" (arXiv:1808.04728); He et al., "Identity Mappings in Deep
Residual Networks" (arXiv:1603.05027). BatchNormalization keeps no moving statistics here: nothing is evaluated.

They are plain functions of a framework's operations and not the Keras 3 models of :mod:`fairlead.ml.models`: Horovod and
MultiWorkerMirroredStrategy do not support Keras 3, a parameter server needs a TensorFlow 1 graph, and in torch Keras would
transpose every batch. One list of layers for both would be longer than the functions here: it would need Keras's layer
names, dropout, policies and paddings, and the CosmoFlow here is none of the published ones there. A network is a function of its input and of ``var(shape, kind)``, which hands out its tensors in
the order in which they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.ml.models import hepcnn, resnet50

# Makes or hands out a tensor of a shape; its kind is ``he``, ``zeros`` or ``ones``.
Var = Callable[[tuple[int, ...], str], Any]


# So low that nothing is learnt, and a delay does no harm: what is measured is time.
RATE, MOMENTUM = 1e-8, 0.9


def _nothing() -> None: ...


@dataclass(frozen=True)
class Training:
    """A network and its step.

    Attributes:
        step: one whole step; returns this rank's loss.
        weights: the trainable tensors as arrays, float32, in the order in which a network uses them.
        momenta: the optimizer's, in the same order. After the first step they are that step's gradients.
        settle: lands the means that a delayed step still has under way.
        updates: how many updates the weights have had, where the servers count.
        reset: puts back the first weights, where servers hold them.
    """

    step: Callable[[], float]
    weights: Callable[[], Sequence[Any]]
    momenta: Callable[[], Sequence[Any]]
    settle: Callable[[], None] = _nothing
    updates: Callable[[], int] | None = None
    reset: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Task:
    """A network at one size.

    Attributes:
        image: shape of a sample, channels last.
        batch: samples a rank and step.
        classes: outputs; 4 are CosmoFlow's parameters, which are numbers.
        weights: trainable numbers, which are asserted.
    """

    name: str
    image: tuple[int, ...]
    batch: int
    classes: int
    weights: int


# The published counts, to which ml.models holds its Keras networks too.
_HEP, _RESNET = hepcnn.network_224().trainable or 0, resnet50.TRAINABLE[2, 1001]
TASKS = {
    "hep": Task("HEP-CNN", (224, 224, 3), 2, 2, _HEP),
    "cosmo": Task("CosmoFlow", (64, 64, 64, 4), 2, 4, 3283060),
    "resnet": Task("ResNet-50", (64, 64, 3), 4, 1001, _RESNET),
}
# The same networks where only their working is of interest; those with a dense layer lose weights.
TINY = {
    "hep": Task("HEP-CNN", (32, 32, 3), 1, 2, _HEP),
    "cosmo": Task("CosmoFlow", (32, 32, 32, 4), 1, 4, 3283060 - 7 * 4**3 * 32 * 128),
    "resnet": Task("ResNet-50", (32, 32, 3), 1, 1001, _RESNET),
}
SIZES = {"full": TASKS, "tiny": TINY}


def build(key: str, ops: Any, var: Var, x: Any, classes: int) -> Any:
    """Logits, or CosmoFlow's four parameters, of a batch with channels last; ``ops`` is the framework's."""
    return {"hep": _hep, "cosmo": _cosmo, "resnet": _resnet}[key](ops, var, x, classes)


def _conv(
    ops: Any, var: Var, x: Any, kernel: int, out: int, stride: int = 1, bias: bool = True
) -> Any:
    dims = ops.spatial(x)
    y = ops.conv(x, var((kernel,) * dims + (ops.channels(x), out), "he"), stride)
    return ops.bias(y, var((out,), "zeros")) if bias else y


def _dense(ops: Any, var: Var, x: Any, out: int) -> Any:
    return ops.matmul(x, var((ops.channels(x), out), "he")) + var((out,), "zeros")


def _hep(ops: Any, var: Var, x: Any, classes: int) -> Any:
    for unit in range(5):
        x = ops.relu(_conv(ops, var, x, 3, 128))
        x = ops.pool(x, 2, 2) if unit < 4 else x
    return _dense(ops, var, ops.mean(x), classes)


def _cosmo(ops: Any, var: Var, x: Any, classes: int) -> Any:
    for out in (16, 32, 64, 128):
        x = ops.pool(ops.relu(_conv(ops, var, x, 3, out)), 2, 2)
    x = ops.flat(ops.relu(_conv(ops, var, x, 3, 256)))
    for out in (128, 64):
        x = ops.relu(_dense(ops, var, x, out))
    return _dense(ops, var, x, classes)


def _resnet(ops: Any, var: Var, x: Any, classes: int) -> Any:
    def norm(x: Any) -> Any:
        width = (ops.channels(x),)
        return ops.relu(ops.norm(x, var(width, "ones"), var(width, "zeros")))

    def conv(x: Any, kernel: int, out: int, stride: int = 1) -> Any:
        return _conv(ops, var, x, kernel, out, stride, bias=False)

    x = ops.pool(conv(x, 7, 64, 2), 3, 2)
    for stage, (blocks, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = norm(x)
            short = x if block else conv(y, 1, 4 * width, stride)
            y = norm(conv(y, 1, width))
            y = norm(conv(y, 3, width, stride))
            x = short + conv(y, 1, 4 * width)
    return _dense(ops, var, ops.mean(norm(x)), classes)
