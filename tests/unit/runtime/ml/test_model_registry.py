"""Models by declaration: one file adds one, with its data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fairlead.base.errors import FairleadError
from fairlead.ml import registry
from fairlead.ml.data import formats, synthetic_hep, synthetic_images, synthetic_universe
from fairlead.ml.data.generate import DataSet, generate
from fairlead.ml.data.manifest import find_shards
from fairlead.ml.data.shards import Rows
from fairlead.ml.train.events import EventLog
from fairlead.ml.train.host import data_key
from fairlead.ml.train.model import TrainOptions

# All that a package has to bring: this module and, in its metadata, one line that names it.
MODULE = """
from fairlead.ml.data.kind import DataKind
from fairlead.ml.network import Network, checked, features
from fairlead.ml.task import Gate, Recipe, Task, adam, constant, squared_error


def make(seed, split, index, count, size):
    import numpy as np

    from fairlead.ml.data.samples import Samples, stream

    signal = stream(seed, split, index).normal(size=(count, size)).astype(np.float32)
    return Samples(signal, signal.mean(1, keepdims=True))


def forms():
    from fairlead.ml.data.formats import HDF5, TFRECORD, Form, floats, numbers

    def sample(record, draw):
        return numbers(record, "signal", "<f4"), floats(record, "level")

    return (
        Form("tones", "Tones", HDF5, "signal", "level", "float32"),
        Form("tones", "Tones", TFRECORD, "signal", "level", "float32", sample),
    )


def build(recipe, sample, outputs):
    from keras import Input, Model, layers

    signal = Input(sample)
    return checked(Model(signal, layers.Dense(outputs)(features(signal))), NETWORK)


def scores(wanted, got):
    return {"error": float(abs(wanted - got).mean())}


NETWORK = Network("tiny-tones", (16,), 1, 17, (16,), "this test")
RECIPE = Recipe(adam, constant(1e-3), 4, 1, 0.0, "this test")
MODEL = Task(
    name="tiny-tones",
    title="Tiny Tones",
    network=NETWORK,
    build=build,
    data=DataKind("tones", 3, 16, make, "tones", forms, per_shard=8),
    size=16,
    prepare=lambda x: x,
    loss=squared_error,
    scores=scores,
    gates=(Gate("error", 0.1, False),),
    penalty=1.0,
    quick=RECIPE,
    published=RECIPE,
    train=20,
    val=8,
    sample="tone",
)
"""


@pytest.fixture
def tones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Python's path with an installed package that declares the model ``tiny-tones``."""
    folder = tmp_path / "site"
    metadata = folder / "tiny_tones-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "tiny_tones.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-tones\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[fairlead.models]\ntiny-tones = tiny_tones:MODEL\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "tiny_tones", raising=False)
    # Processes that generate files start anew.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), *sys.path])))
    return folder


def fairlead(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *words], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_model_of_another_package_is_in_help_and_in_messages(tones: Path) -> None:
    assert "tiny-tones" in fairlead("train", "--help") and "Tiny Tones" in fairlead(
        "train", "--help"
    )
    assert "cosmoflow-sc18, tiny-tones" in fairlead("train", "no-such-model")
    assert "no model `tiny-tone`. Did you mean" in " ".join(
        fairlead("validate", "--models", "tiny-tone").split()
    )


def test_model_of_another_package_has_options_and_data(tones: Path) -> None:
    options = TrainOptions(tones, model="tiny-tones", data_format="tfrecord")
    assert (options.task.title, options.samples, options.each) == ("Tiny Tones", (20, 8), 4)
    assert data_key(options).startswith("tones-")
    assert registry.data_kinds()["tones"].version == 3


@pytest.mark.parametrize("form", ["hdf5", "tfrecord"])
def test_data_of_another_packages_model_are_generated_and_read(
    tones: Path, tmp_path: Path, form: str
) -> None:
    data = DataSet(train=20, val=8, kind="tones", format=form)
    generate(data, tmp_path / "data", 1, EventLog(tmp_path / "events"))
    assert len(find_shards(tmp_path / "data", "train")) == 3
    rows = Rows(tmp_path / "data", "train", 0, 1)
    assert (rows.total, rows.layout.data_set, rows.layout.input_shape) == (20, "tones", (16,))
    (batch,) = rows.in_order(20)
    assert np.allclose(batch.inputs.mean(1, keepdims=True), batch.targets, atol=1e-6)


def test_models_of_another_package_may_share_their_data(tones: Path) -> None:
    with (tones / "tiny_tones.py").open("a") as module:
        module.write(
            "from dataclasses import replace\nSECOND = replace(MODEL, name='tiny-second')\n"
        )
    with (tones / "tiny_tones-1.0.dist-info/entry_points.txt").open("a") as entries:
        entries.write("tiny-second = tiny_tones:SECOND\n")
    form = formats.recognised(formats.TFRECORD, ["signal", "level"])
    assert form is not None and form.data_set == "tones"


def test_model_of_another_package_builds_its_network(tones: Path) -> None:
    pytest.importorskip("keras")
    task = registry.find("tiny-tones")
    model = task.build(task.quick, (16,), 1)
    model.compile(task.quick.optimizer(None), task.loss)  # type: ignore[arg-type]
    model.fit(np.ones((4, 16), np.float32), np.ones((4, 1), np.float32), verbose=0)


def test_bundled_model_is_found_without_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.base.registry._entry_points", None)
    assert registry.find("resnet50-v1").title == "ResNet-50 v1"
    assert registry.data_kind("cosmo-mlperf").per_shard == 16
    assert registry.validated() == ("hepcnn", "resnet50", "cosmoflow")
    form = formats.recognised(formats.TFRECORD, ["image/encoded", "image/class/label"])
    assert form is not None and form.data_set == "imagenet"


def test_every_form_of_the_data_files_is_declared_by_a_model() -> None:
    files = (synthetic_hep, synthetic_universe, synthetic_images)
    declared = [form.key for form in formats.forms()]
    assert len(set(declared)) == len(declared)
    assert set(declared) == {form.key for file in files for form in file.forms()}


def test_model_that_cannot_be_loaded_is_named_when_it_is_asked_for(tones: Path) -> None:
    (tones / "tiny_tones.py").write_text("raise RuntimeError('no tones today')\n")
    assert "tiny-tones" not in registry.names()
    with pytest.raises(FairleadError, match="`tiny-tones` cannot be loaded"):
        registry.find("tiny-tones")
