"""The image of a training script, by what it imports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.session.script_image import choose, imported

BUILT: Mapping[str, Mapping[str, str]] = {
    "tensorflow": {"tensorflow-cpu": "2.22", "keras": "3.15"},
    "pytorch": {"torch": "2.13+cpu", "keras": "3.15"},
    "mine": {"numpy": "2"},
    "unknown": {},
}


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import torch.nn as nn\n", {"torch"}),
        ("def main():\n    from tensorflow import keras\n", {"tensorflow"}),
        ("from keras.layers import Dense; import numpy", {"keras"}),
        ("from . import torch\nfrom .keras import x\n", set()),
        ("'import torch'", set()),
        ("import torch; this is no Python", set()),
        ("import lightning as L", {"lightning", "torch"}),
        (
            "import timm\nfrom pytorch_lightning import Trainer",
            {"timm", "pytorch_lightning", "torch"},
        ),
        ("from keras_cv.models import X", {"keras_cv", "keras"}),
        ("try:\n    import torch\nexcept ImportError:\n    import tensorflow", {"tensorflow"}),
        ("try:\n    import torch\nexcept OSError:\n    pass", {"torch"}),
        ("if TYPE_CHECKING:\n    import torch\nelse:\n    import keras", {"keras"}),
    ],
)
def test_frameworks_are_what_a_script_imports(tmp_path: Path, text: str, modules: set[str]) -> None:
    assert imported(script(tmp_path, text)) == modules


@pytest.mark.parametrize(
    "text",
    [
        "from net import *",
        "import net",
        "from models import resnet",
        "import models.resnet as r",
        "from models.deep import block",
        "import loops",
    ],
)
def test_frameworks_of_the_scripts_own_modules_count(tmp_path: Path, text: str) -> None:
    deep = tmp_path / "models/deep"
    deep.mkdir(parents=True)
    (tmp_path / "net.py").write_text("import torch")
    (tmp_path / "loops.py").write_text("import loops, again")
    (tmp_path / "again.py").write_text("import loops\nimport models.resnet")
    (tmp_path / "models/__init__.py").write_text("import numpy")
    (tmp_path / "models/resnet.py").write_text("from .deep.block import Block")
    (deep / "block.py").write_text("from ..parts import Part")
    (tmp_path / "models/parts.py").write_text("from torch import nn")
    assert imported(script(tmp_path, text)) == {"torch"}


def test_own_module_with_the_name_of_a_framework_is_not_the_framework(tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text("import torch")
    assert imported(script(tmp_path, "import keras")) == {"torch"}


def test_image_that_was_built_here_and_has_all_is_named(tmp_path: Path) -> None:
    built = {**BUILT, "light": {"torch": "2.13", "pytorch-lightning": "2"}}
    path = script(tmp_path, "from pytorch_lightning import Trainer")
    with pytest.raises(FairleadError, match="does not contain pytorch_lightning") as caught:
        choose(path, "", built.get, lambda: built)
    [finding] = caught.value.findings
    assert (finding.where, finding.remedy) == ("--image pytorch", "--image light")
    assert choose(path, "light", built.get) == "light"


@pytest.mark.parametrize(
    ("text", "asked", "image"),
    [
        ("import torch", "", "pytorch"),
        ("import torch, keras", "", "pytorch"),
        ("import keras", "", "tensorflow"),
        ("import tensorflow, keras", "", "tensorflow"),
        ("import numpy", "", "tensorflow"),
        ("import torch", "pytorch", "pytorch"),
        ("import torch", "unknown", "unknown"),
        ("import torch", "not-built", "not-built"),
        ("import numpy", "mine", "mine"),
        ("import tf_keras", "", "tensorflow:keras2"),
    ],
)
def test_image_is_the_requested_one_or_has_what_the_script_imports(
    tmp_path: Path, text: str, asked: str, image: str
) -> None:
    assert choose(script(tmp_path, text), asked, BUILT.get) == image


def test_nothing_built_names_what_to_build(tmp_path: Path) -> None:
    assert choose(script(tmp_path, "import torch"), "", lambda name: None) == "pytorch"


@pytest.mark.parametrize(
    ("text", "asked", "lacking", "remedy"),
    [
        ("import torch", "tensorflow", "torch", "--image pytorch"),
        ("import torch, tensorflow", "", "tensorflow", "add it to [packages] pip"),
        ("import torchvision", "", "torchvision", "add it to [packages] pip"),
    ],
)
def test_image_without_a_framework_is_refused_with_the_one_that_has_it(
    tmp_path: Path, text: str, asked: str, lacking: str, remedy: str
) -> None:
    with pytest.raises(FairleadError, match=f"does not contain {lacking}") as caught:
        choose(script(tmp_path, text), asked, BUILT.get)
    assert caught.value.code is ExitCode.USAGE
    assert caught.value.findings[0].remedy.startswith(remedy)


@pytest.mark.parametrize(("asked", "image"), [("pytorch", "pytorch"), ("", "pytorch")])
def test_modules_from_folders_of_the_user_are_not_lacking(
    tmp_path: Path, asked: str, image: str
) -> None:
    path = script(tmp_path, "import torchvision, torch")
    with pytest.raises(FairleadError, match="does not contain torchvision"):
        choose(path, asked, BUILT.get)
    assert choose(path, asked, BUILT.get, elsewhere=True) == image
