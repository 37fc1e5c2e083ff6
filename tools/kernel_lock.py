"""``python -m tools.kernel_lock``: pins what ``fairlead notebook --with-kernel`` lays over images; ``make kernel-lock``.

One set of versions for every Python: pip judges a requirement's conditions by the Python that runs it, not by the image's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from fairlead.notebook.overlay import LOCK, NEEDED, OF_RANKS

_HEAD = """\
# What `fairlead notebook --with-kernel` lays over images: ipykernel, ipyparallel, cloudpickle, mpi4py, NumPy and what they
# need. Made by `make kernel-lock`.
"""
_OLDEST = "3.11"
_ELSEWHERE = re.compile(
    r"sys_platform == '(darwin|win32|emscripten)'|implementation_name == 'pypy'"
)


def lock(compiled: str) -> str:
    """uv's universal lock without other systems' packages and without conditions; of several versions, the oldest Python's."""
    kept: dict[str, str] = {}
    for block in re.split(r"(?m)^(?=[a-z])", compiled):
        if not block.strip() or _ELSEWHERE.search(block):
            continue
        kept.setdefault(block.split("==")[0], re.sub(r" ; [^\n\\]* \\", r" \\", block, count=1))
    return _HEAD + "".join(kept.values())


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        wanted = Path(name, "kernel.in")
        wanted.write_text("\n".join((*NEEDED, *OF_RANKS, "cloudpickle")) + "\n")
        words = (
            "pip", "compile", "-q", "--universal", "--python-version", _OLDEST, "--generate-hashes", "--no-annotate",
            "--no-emit-index-url", "--no-header", str(wanted), "-o", f"{name}/lock",
        )  # fmt: skip
        subprocess.run([sys.argv[1] if len(sys.argv) > 1 else "uv", *words], check=True)
        LOCK.write_text(lock(Path(name, "lock").read_text()))


if __name__ == "__main__":
    main()
