"""``python3 -m fairlead.native FOLDER``: the collective core and its header, for programs in C and C++.

The library is the installation's own, else compiled on this machine; it gets the name that ``-l`` looks for.
It links nothing, so the copy serves in every image and under every MPI.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead.base.errors import FairleadError
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.native import CORE, core_folder, ensure


def main(words: list[str]) -> int:
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(f"{(__doc__ or '').splitlines()[0]}\n")
        return 2
    folder = Path(words[0])
    try:
        core = ensure(CORE, cache_dir())
        for source, name in (
            (core, CORE.name),
            (core_folder() / "include" / "fairlead_comm.h", "fairlead_comm.h"),
        ):
            # A program that runs keeps the file that it has mapped.
            with atomic_write(folder / name) as out:
                out.write(source.read_bytes())
            print(folder / name)
    except FairleadError as exc:
        for finding in exc.findings:
            details = (f"{label} {text}" for label, text in finding.details)
            print(f"error: {finding.what}", *details, sep="\n", file=sys.stderr)
        return int(exc.code)
    except OSError as exc:
        sys.stderr.write(f"error: {folder} cannot be written: {exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
