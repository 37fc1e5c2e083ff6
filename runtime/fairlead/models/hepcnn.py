"""HEP-CNN on 64x64 detector images: tells signal events from background.

Source: github.com/sparticlesteve/hep_cnn_benchmark, the 64x64 configuration; the network of
Kurth et al., "Deep Learning at 15PF" (arXiv:1708.05256), on R-parity-violating supersymmetry
against the Standard Model background. Events come from :mod:`fairlead.data.hep`, training is in
:mod:`fairlead.train.worker`.

As published: three units of [3x3 convolution, 128 filters, SAME, ReLU; 2x2 max-pooling; dropout
with keep probability .5], flatten, dense 512 + ReLU + dropout, dense 2. He-normal weights, zero
biases; softmax cross-entropy, which the published loop leaves unweighted; Adam at 1e-5, 726,016
samples, 200 epochs.

``fairlead train`` deviates from it, so that a minute on two cores is enough to learn: Adam at 1e-3
with a warm-up and a decay (:func:`learning_rate`), no dropout, and the input ``log(1 + 100 x)``,
for most pixels of an event lie near 1/100 of the channel's maximum.
"""

from __future__ import annotations

from typing import Any

from fairlead.findings import fail

TRAINABLE = 4_494_594
FEATURES = (8, 8, 128)
SIZE = 64
CHANNELS = 3


def build(dropout: float) -> Any:
    """The network as a ``keras.Model``: images to logits.

    Args:
        dropout: fraction dropped after each unit and in the head; 0.5 as published, 0.0 for none.
    Returns:
        A model from float32 ``(batch, 64, 64, 3)``, prepared by :func:`prepare`, to float32 logits
        ``(batch, 2)``: background, signal.
    Raises:
        FairleadError: Keras built a network of another size than the published one.
    """
    from keras import Input, Model, layers

    images = Input((SIZE, SIZE, CHANNELS), name="images")
    x = images
    for unit in (1, 2, 3):
        x = layers.Conv2D(
            128,
            3,
            padding="same",
            activation="relu",
            kernel_initializer="he_normal",
            name=f"conv{unit}",
        )(x)
        x = layers.MaxPooling2D(2, padding="same", name=f"pool{unit}")(x)
        x = layers.Dropout(dropout, name=f"drop{unit}")(x)
    features = tuple(x.shape[1:])
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(512, activation="relu", kernel_initializer="he_normal", name="dense")(x)
    x = layers.Dropout(dropout, name="drop4")(x)
    logits = layers.Dense(2, kernel_initializer="he_normal", name="logits")(x)
    model = Model(images, logits, name="hepcnn")
    trainable = sum(int(weight.shape.num_elements()) for weight in model.trainable_variables)
    if (trainable, features) != (TRAINABLE, FEATURES):
        raise fail(
            "this is not HEP-CNN 64x64",
            where="fairlead.models.hepcnn.build",
            why=f"{trainable:,} trainable parameters and features {features}; published are"
            f" {TRAINABLE:,} and {FEATURES}",
            remedy="use the Keras version of the image's lock",
            check="model-count",
        )
    return model


def prepare(images: Any) -> Any:
    """Events as stored, float32 ``(batch, 3, 64, 64)`` in units of the channel's maximum, as the
    network wants them: ``log(1 + 100 x)``, ``(batch, 64, 64, 3)``. TensorFlow in and out."""
    import tensorflow as tf

    return tf.math.log1p(100.0 * tf.transpose(images, [0, 2, 3, 1]))


def learning_rate(peak: float, steps: int) -> Any:
    """A Keras schedule over ``steps``: linear to ``peak`` for a tenth, then down a cosine to 0."""
    from keras.optimizers.schedules import CosineDecay

    warm = max(steps // 10, 1)
    return CosineDecay(0.0, max(steps - warm, 1), warmup_target=peak, warmup_steps=warm)


def loss(labels: Any, logits: Any) -> Any:
    """Softmax cross-entropy, the mean over the batch; ``labels`` are int ``(batch,)``, 0 or 1."""
    import tensorflow as tf

    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


def score(logits: Any) -> Any:
    """How much an event looks like signal: the difference of the logits, float32 ``(batch,)``.

    It orders events as P(signal) does, without the ties of a saturated softmax.
    """
    return logits[:, 1] - logits[:, 0]
