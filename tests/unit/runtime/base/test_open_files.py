"""The limit of open files of a process that many ranks connect to."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
from fairlead.base.process import raise_open_files
raise_open_files()
files = [open("/dev/null") for _ in range(400)]
print(len(files), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_soft_limit_is_raised_to_the_hard_one() -> None:
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "400 (512, 512)\n"
