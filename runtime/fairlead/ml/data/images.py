"""ImageNet's photographs as ResNet-50 wants them: decoded, cut, brought to 224x224, less the mean.

Source of the pre-processing: github.com/NERSC/cray-bdc-deeplearning a39eaf0 and TensorFlow's official ResNet of 2018
(imagenet_preprocessing.py). Training: a part of 5 to 100 % of the area and of aspect .75 to 1.33, which has a tenth
of a marked object in it, drawn as tf.image.sample_distorted_bounding_box draws it; flipped every other time; resized.
Evaluation: the shorter side becomes 256, the middle is cut out. Both subtract the mean colour of ImageNet, and do not scale.

Decoding is TensorFlow's where it can be imported, else Pillow's; the two round colours differently by a few
of 255 steps. All else is NumPy here, and resizing is bilinear without smoothing, as the published code has it.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.base.errors import fail
from fairlead.ml.data.example import Feature
from fairlead.ml.data.formats import TFRECORD, BadSample, Form, label, only
from fairlead.ml.data.samples import Array, Draw

SIZE, SHORTER_SIDE = 224, 256
MEANS = (123.68, 116.78, 103.94)  # red, green, blue, of 255
ASPECT, AREA, COVERED, ATTEMPTS = (0.75, 1.33), (0.05, 1.0), 0.1, 100

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def decoded(data: bytes) -> Pixels:
    """The pixels of a JPEG or PNG file, (height, width, 3).

    Raises:
        BadSample: it is none, or damaged.
        FairleadError: neither TensorFlow nor Pillow can be imported.
    """
    if decoder() == "tensorflow":
        import tensorflow as tf

        try:
            pixels = tf.io.decode_image(data, channels=3, expand_animations=False).numpy()
        except tf.errors.InvalidArgumentError as exc:
            raise _bad(exc) from exc
        return np.asarray(pixels, np.uint8)
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as picture:
            return np.asarray(picture.convert("RGB"))
    # Pillow raises SyntaxError for a damaged PNG, and an error of its own for too many pixels.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as exc:
        raise _bad(exc) from exc


def _bad(exc: Exception) -> BadSample:
    return BadSample(f"`image/encoded`: {(str(exc) or type(exc).__name__).splitlines()[0]}")


@lru_cache(maxsize=1)
def decoder() -> str:
    """The installed library that decodes pictures: ``tensorflow`` or ``PIL``.

    Raises:
        FairleadError: neither is installed.
    """
    for name in ("tensorflow", "PIL"):
        if name in sys.modules or importlib.util.find_spec(name):
            return name
    raise fail("data-decoder-jpeg", executable=sys.executable)


def for_training(
    pixels: Pixels, boxes: Floats, rng: np.random.Generator, size: int = SIZE
) -> Floats:
    """A random part of a picture (height, width, 3), as (size, size, 3), less the mean colour.

    Args:
        boxes: (n, 4), y and x of the upper left and of the lower right corner of each object, 0 to 1.
    """
    top, left, height, width = crop(pixels.shape[0], pixels.shape[1], boxes, rng)
    part = pixels[top : top + height, left : left + width]
    if rng.random() < 0.5:
        part = part[:, ::-1]
    return resized(part, size, size) - np.array(MEANS, np.float32)


def for_evaluation(pixels: Pixels, size: int = SIZE) -> Floats:
    """The middle of a picture (height, width, 3), as (size, size, 3), less the mean colour.

    The shorter side is resized to 256 / 224 of ``size`` before.
    """
    high, wide = pixels.shape[:2]
    scale = SHORTER_SIDE * size / SIZE / min(high, wide)
    high, wide = max(round(high * scale), size), max(round(wide * scale), size)
    top, left = (high - size) // 2, (wide - size) // 2
    return resized(pixels, high, wide, (top, left, size, size)) - np.array(MEANS, np.float32)


def crop(
    high: int, wide: int, boxes: Floats, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random part of a picture; all of it where none was found.

    Args:
        boxes: as :func:`for_training` has them; with none, the picture is the object.
    """
    objects = np.asarray(boxes, np.float64).reshape(-1, 4)
    if not len(objects):
        objects = np.array([[0.0, 0.0, 1.0, 1.0]])
    objects = objects * [high, wide, high, wide]
    for _ in range(ATTEMPTS):
        aspect = rng.uniform(*ASPECT)
        lowest, highest = (round((area * high * wide / aspect) ** 0.5) for area in AREA)
        if round(highest * aspect) > wide:
            highest = int((wide + 0.5 - 1e-7) / aspect)
        highest = min(highest, high)
        height = int(rng.integers(min(lowest, highest), highest + 1))
        width = round(height * aspect)
        area = height * width / (high * wide)
        if not (0 < width <= wide and height > 0 and AREA[0] <= area <= AREA[1]):
            continue
        top = int(rng.integers(high - height + 1))
        left = int(rng.integers(wide - width + 1))
        if _covers(objects, top, left, height, width):
            return top, left, height, width
    return 0, 0, high, wide


def _covers(objects: npt.NDArray[np.float64], top: int, left: int, high: int, wide: int) -> bool:
    """Whether enough of at least one object is in a part."""
    low = np.maximum(objects[:, :2], [top, left])
    far = np.minimum(objects[:, 2:], [top + high, left + wide])
    inside = np.clip(far - low, 0, None).prod(1)
    whole = (objects[:, 2:] - objects[:, :2]).prod(1)
    return bool((inside >= COVERED * whole)[whole > 0].any())


def resized(
    pixels: Any, high: int, wide: int, part: tuple[int, int, int, int] | None = None
) -> Floats:
    """``pixels`` brought to (high, wide, 3) float32, bilinear; or a part of that: top, left, height, width."""
    top, left, height, width = part or (0, 0, high, wide)
    rows = np.arange(top, top + height) * (pixels.shape[0] / high)
    columns = np.arange(left, left + width) * (pixels.shape[1] / wide)
    upper, down = _between(rows, pixels.shape[0])
    first, right = _between(columns, pixels.shape[1])
    # Rows first: of the source only those that are needed, as float32.
    a, b = (pixels[np.minimum(upper + n, pixels.shape[0] - 1)].astype(np.float32) for n in (0, 1))
    a += (b - a) * down[:, None, None]
    after = np.minimum(first + 1, pixels.shape[1] - 1)
    mixed: Floats = a[:, first] + (a[:, after] - a[:, first]) * right[:, None]
    return mixed


def _between(places: npt.NDArray[np.float64], size: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """The pixel at or before each place, and the distance of the place from it, 0 to 1."""
    first = np.minimum(places.astype(np.int64), size - 1)
    return first, (places - first).astype(np.float32)


_BOXES = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))


def _sample(features: Mapping[str, Feature], draw: Draw) -> tuple[Array, Array]:
    target = label(features, "image/class/label")
    sides = [features.get(side) for side in _BOXES]
    known = [side for side in sides if isinstance(side, np.ndarray)]
    if len({len(side) for side in known}) > 1:
        raise BadSample("its boxes have sides of different numbers")
    boxes = np.empty((0, 4), np.float32)
    if len(known) == 4:
        boxes = np.stack(known, 1).astype(np.float32)
    pixels = decoded(bytes(only(features, "image/encoded")))
    if draw.training:
        return for_training(pixels, boxes, draw.generator()), target
    return for_evaluation(pixels), target


IMAGENET = Form(
    "imagenet", "ImageNet", TFRECORD, "image/encoded", "image/class/label", "int32", _sample, also=_BOXES
)  # fmt: skip
