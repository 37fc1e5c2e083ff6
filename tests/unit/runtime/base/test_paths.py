"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WRITES = """
import sys
from pathlib import Path
from fairlead.base.paths import atomic_write
with atomic_write(Path(sys.argv[1]), "w") as stream:
    stream.write("3 \\xd7 2 \\xb5s\\n")
"""


def test_text_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", WRITES, tmp_path / "page"], env=ascii_only, check=True)
    assert (tmp_path / "page").read_text("utf-8") == "3 × 2 µs\n"
