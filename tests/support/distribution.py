"""A distribution that adds one declaration by one file and one entry point, as another project would."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Distribution:
    """An installed distribution, in a folder that is on ``sys.path`` of what is run by it."""

    folder: Path

    def python(self, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """The end of a Python that sees it."""
        path = os.pathsep.join([str(self.folder), str(ROOT)])
        env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **variables}
        argv = [sys.executable, *map(str, words)]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    def fairlead(self, *words: str | Path, **variables: str) -> str:
        """What a verb prints on stdout; it must end well."""
        done = self.python("-m", "fairlead", *words, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def install(folder: Path, group: str, name: str, attribute: str, source: str) -> Distribution:
    """Writes a module with ``source`` and the metadata that names it, as an installer would."""
    (folder / "made_up.py").write_text(textwrap.dedent(source))
    info = folder / "made_up-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = made_up:{attribute}\n")
    return Distribution(folder)
