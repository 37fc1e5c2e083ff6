"""What :mod:`fairlead.perf.bench.nets` needs of TensorFlow. Import it when the rank is on its core."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


class Ops:
    """The operations, by TensorFlow."""

    relu = staticmethod(tf.nn.relu)
    matmul = staticmethod(tf.matmul)
    bias = staticmethod(tf.nn.bias_add)

    @staticmethod
    def spatial(x: Any) -> int:
        return len(x.shape) - 2

    @staticmethod
    def channels(x: Any) -> int:
        return int(x.shape[-1])

    @staticmethod
    def conv(x: Any, kernel: Any, stride: int) -> Any:
        dims = len(x.shape) - 2
        conv = tf.nn.conv2d if dims == 2 else tf.nn.conv3d
        strides = stride if dims == 2 else [1, *[stride] * dims, 1]
        return conv(x, kernel, strides=strides, padding="SAME")

    @staticmethod
    def pool(x: Any, size: int, stride: int) -> Any:
        pool = tf.nn.max_pool2d if len(x.shape) == 4 else tf.nn.max_pool3d
        return pool(x, size, stride, "SAME")

    @staticmethod
    def norm(x: Any, scale: Any, offset: Any) -> Any:
        return tf.compat.v1.nn.fused_batch_norm(x, scale, offset, epsilon=1e-5, is_training=True)[0]

    @staticmethod
    def mean(x: Any) -> Any:
        return tf.reduce_mean(x, list(range(1, len(x.shape) - 1)))

    @staticmethod
    def flat(x: Any) -> Any:
        return tf.reshape(x, [int(x.shape[0]), -1])


def initial(shape: tuple[int, ...], kind: str, source: np.random.Generator) -> Any:
    """A tensor to begin with, float32."""
    if kind != "he":
        return np.full(shape, float(kind == "ones"), np.float32)
    scale = np.sqrt(2 / np.prod(shape[:-1]))
    return (scale * source.standard_normal(shape)).astype(np.float32)


def loss_of(logits: Any, labels: Any) -> Any:
    """Cross entropy of classes, the squared error of numbers; the batch's mean."""
    if labels.dtype.is_floating:
        return tf.reduce_mean(tf.square(logits - labels))
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
