"""TensorFlow reads what fairlead.ml.data wrote, and the other way round: ``data_tensorflow.py FOLDER``.

Prints ``FOUND`` and a JSON object of what was compared. The folder has cosmo and hep files of fairlead.ml.data.generate.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from fairlead.ml import registry
from fairlead.ml.data import crc32c, images, tfrecord
from fairlead.ml.data.example import decode, encode
from fairlead.ml.data.shards import Rows

FOLDER = Path(sys.argv[1])
COMPRESSIONS = ("", "GZIP", "ZLIB")


def ours_read_by_tensorflow(name, size, spec):
    """How many samples of a generated split TensorFlow reads as they were made."""
    makes = registry.data_kind(name).make
    equal = 0
    for path in sorted(FOLDER.glob(f"{name}/{name}_train_*")):
        how = "GZIP" if path.suffix == ".gz" else ""
        index = int(path.name.split("_")[2][:5])
        found = list(tf.data.TFRecordDataset(str(path), compression_type=how))
        made = makes(1, "train", index, len(found), size)
        for row, record in enumerate(found):
            parsed = tf.io.parse_single_example(record, spec)
            source, target = (parsed[key].numpy() for key in spec)
            dtype = made.inputs.dtype.newbyteorder("<")
            pixels = np.frombuffer(source, dtype).reshape(made.inputs.shape[1:])
            equal += bool(np.array_equal(pixels, made.inputs[row]))
            assert np.array_equal(np.ravel(target), np.ravel(made.targets[row]))
    return equal


def tensorflow_read_by_us():
    """Records of tf.io.TFRecordWriter in each compression, byte for byte."""
    source = np.random.default_rng(1)
    sent = [source.bytes(int(n)) for n in (0, 1, 63, 64, 5685, 5686, 65_536, 3_000_000)]
    found = {}
    for how in COMPRESSIONS:
        path = FOLDER / f"of_tensorflow_{how or 'plain'}.tfrecord"
        with tf.io.TFRecordWriter(str(path), how) as out:
            for record in sent:
                out.write(record)
        read = [bytes(record) for record in tfrecord.records(path)]
        found[how] = read == sent and tfrecord.count(path) == len(sent)
        found[how] &= tfrecord.compression(path) == how
    plain = FOLDER / "of_tensorflow_plain.tfrecord"
    with (FOLDER / "ours.tfrecord").open("wb") as stream, tfrecord.Writer(stream) as out:
        for record in sent:
            out.write(record)
    found["same bytes"] = plain.read_bytes() == (FOLDER / "ours.tfrecord").read_bytes()
    return found


def messages():
    """Examples in both directions, and the bytes of ours against TensorFlow's own."""
    feature = tf.train.Feature
    theirs = tf.train.Example(
        features=tf.train.Features(
            feature={
                "bytes": feature(bytes_list=tf.train.BytesList(value=[b"one", b"", b"two"])),
                "floats": feature(float_list=tf.train.FloatList(value=[1.5, -2.0, 3e38])),
                "ints": feature(int64_list=tf.train.Int64List(value=[0, -1, 2**62, 300])),
                "none": feature(),
            }
        )
    )
    values = {
        "bytes": [b"one", b"", b"two"],
        "floats": np.array([1.5, -2.0, 3e38], np.float32),
        "ints": np.array([0, -1, 2**62, 300]),
        "none": [],
    }
    read = decode(theirs.SerializeToString())
    back = tf.train.Example.FromString(encode(values))
    for name in ("bytes", "floats", "ints"):
        assert [bytes(v) if name == "bytes" else v for v in read[name]] == list(values[name]), name
    kinds = back.features.feature
    return {
        "bytes": list(kinds["bytes"].bytes_list.value) == values["bytes"],
        "floats": list(kinds["floats"].float_list.value) == values["floats"].tolist(),
        "ints": list(kinds["ints"].int64_list.value) == values["ints"].tolist(),
    }


def photographs():
    """JPEGs of TensorFlow's in the form of ImageNet, decoded by us and cut as it cuts them."""
    y, x = np.mgrid[:300, :400] / 100
    smooth = (127 + 100 * np.stack([np.sin(3 * x), np.cos(2 * y), np.sin(x * y)], -1)).astype("u1")
    encoded = tf.io.encode_jpeg(smooth, quality=95).numpy()
    folder = FOLDER / "imagenet"
    folder.mkdir()
    feature = tf.train.Feature
    with tf.io.TFRecordWriter(str(folder / "validation-00000-of-00001")) as out:
        for label in (1, 1000):
            values = {
                "image/encoded": feature(bytes_list=tf.train.BytesList(value=[encoded])),
                "image/class/label": feature(int64_list=tf.train.Int64List(value=[label])),
            }
            message = tf.train.Example(features=tf.train.Features(feature=values))
            out.write(message.SerializeToString())
    (batch,) = Rows(folder, "val", 0, 1).in_order(4)
    # As the published evaluation: the shorter side to 256, the middle, less the mean; TensorFlow 1's resizing.
    decoded = tf.io.decode_jpeg(encoded, channels=3)
    large = tf.compat.v1.image.resize(decoded, (256, 341), tf.image.ResizeMethod.BILINEAR)
    middle = large[16:240, 58:282].numpy() - np.array(images.MEANS, np.float32)
    return {
        "decoder": images.decoder(),
        "labels": batch.targets.tolist(),
        "largest difference": float(np.abs(batch.inputs - middle).max()),
    }


def main():
    floats = tf.io.FixedLenFeature
    cosmo = {"x": floats([], tf.string), "y": floats([3], tf.float32)}
    hep = {"data": floats([], tf.string), "label": floats([], tf.int64)}
    found = {
        "cosmo": ours_read_by_tensorflow("cosmo", 16, cosmo),
        "hep": ours_read_by_tensorflow("hep", 16, hep),
        "theirs": tensorflow_read_by_us(),
        "messages": messages(),
        "photographs": photographs(),
        "crc32c": crc32c.crc32c(b"123456789"),
    }
    print("FOUND", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
