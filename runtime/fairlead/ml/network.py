"""Published sizes of networks, which are asserted, and layers that several networks share.

Counts are of trainable parameters: BatchNorm's scale and offset are included, its moving statistics are not. A count
does not depend on strides, so the shape before the head is asserted, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fairlead.base.errors import fail

# The layer whose output is the input of a network's head.
FEATURES = "features"


@dataclass(frozen=True)
class Network:
    """A network of a published size.

    Attributes:
        name: as `fairlead train` takes it.
        image: shape of one sample, channels last.
        outputs: logits, or regressed parameters.
        trainable: number of parameters; None where no count was published.
        features: shape before the head, without the batch.
        source: where network and counts are from.
    """

    name: str
    image: tuple[int, ...]
    outputs: int
    trainable: int | None
    features: tuple[int, ...]
    source: str


def parameters(model: Any) -> int:
    """Trainable parameters of a ``keras.Model``."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def checked(model: Any, network: Network) -> Any:
    """``model``, after comparing its size with ``network``: what every builder of a network returns.

    Raises:
        FairleadError: Keras built a network of another size than the published one.
    """
    count, shape = parameters(model), tuple(model.get_layer(FEATURES).output.shape[1:])
    published = network.trainable or count
    if (count, shape) != (published, network.features):
        raise fail("model-count", network=network, count=count, shape=shape, published=published)
    return model


def features(x: Any) -> Any:
    """``x``, in a layer with the name that :func:`checked` looks up."""
    from keras import layers

    # In float32 whatever the policy: a head sums over many features.
    return layers.Activation("linear", dtype="float32", name=FEATURES)(x)
