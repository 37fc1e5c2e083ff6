"""Programs that run on every rank: settings go in as a JSON file, rank 0 writes a JSON document.

``python3 -m MODULE --config FILE``, where FILE is the JSON form of the program's settings dataclass. Its ``out`` names
the file for the document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write
from fairlead.base.serde import from_json, to_json

if TYPE_CHECKING:
    from fairlead.ml.train.runner import Runner

T = TypeVar("T")


class Settings(Protocol):
    """A program's settings: a frozen dataclass with a JSON form."""

    @property
    def out(self) -> Path:
        """The file that rank 0 writes."""
        ...


def read_settings(cls: type[T], words: Sequence[str]) -> T:
    """The settings that ``--config FILE`` names.

    Raises:
        SystemExit: the command line has another form; code 2.
        ValueError: the file does not fit ``cls``.
    """
    if len(words) != 2 or words[0] != "--config":
        sys.stderr.write("usage: python3 -m PROGRAM --config FILE\n")
        raise SystemExit(2)
    return from_json(cls, json.loads(Path(words[1]).read_text("utf-8")))


def write_document(path: Path, document: Any) -> None:
    """Writes JSON, whole or not at all."""
    with atomic_write(path, "w") as stream:
        json.dump(document, stream, indent=1)


def run_program(
    module: str,
    settings: Settings,
    run: Runner,
    ranks: int,
    *,
    events: Path | None = None,
    show: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Runs ``module`` on ``ranks`` ranks and returns the document of rank 0.

    The config is written next to the document, as ``NAME.config.json``.

    Args:
        events: file that the ranks append events to; ``show`` gets each one while the program runs.
    Raises:
        FairleadError: the launch failed, or left no document.
        OSError: the folder cannot be written.
    """
    from fairlead.ml.train.runner import launch

    out = settings.out
    for old in filter(None, (out, events)):
        old.unlink(missing_ok=True)
    config = out.with_suffix(".config.json")
    write_document(config, to_json(settings))
    words = ["python3", "-m", module, "--config", str(config)]
    launch(run, ranks, words, [out.parent], events, show)
    try:
        document: dict[str, Any] = json.loads(out.read_text("utf-8"))
    except (OSError, ValueError) as exc:
        raise fail("bench-no-result", out=out, reason=exc) from exc
    return document
