"""What is laid over images that lack a kernel."""

from __future__ import annotations

import re
import tomllib

from fairlead.base.paths import checkout
from fairlead.notebook.overlay import LOCK, NEEDED, OF_RANKS, _needed


def test_lock_has_what_is_needed_with_hashes_and_no_conditions() -> None:
    text = LOCK.read_text()
    pinned = re.findall(r"^([\w.-]+)==[\w.]+ \\$", text, re.M)
    assert {*NEEDED, *OF_RANKS, "cloudpickle", "pyzmq"} <= {*pinned}
    assert len(pinned) == len({*pinned})
    # pip judges conditions by the Python that runs it, not by the image's.
    assert not re.search(r"^[^#\n].*;", text, re.M)


def test_package_that_an_image_has_is_left_out_with_all_its_hashes() -> None:
    lock = "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\nnumpy==2 \\\n    --hash=sha256:3\nz==1 \\\n    --hash=sha256:4\n"
    assert (
        _needed(lock, ["numpy"])
        == "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\nz==1 \\\n    --hash=sha256:4\n"
    )
    assert _needed(lock, []) == lock


def test_analytics_needs_nothing_laid_over_it() -> None:
    root = checkout()
    assert root
    lock = tomllib.loads((root / "recipes/analytics/lock.toml").read_text())
    assert {*NEEDED, *OF_RANKS} <= {wheel["name"] for wheel in lock["wheel"]}
