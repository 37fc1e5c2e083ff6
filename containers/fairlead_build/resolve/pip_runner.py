"""pip with the environment markers of the image: ``python3 -P pip_runner.py MARKERS ARGUMENT…``.

pip's options describe another Python for the choice of wheels, but conditions such as ``python_version < "3.11"`` it
evaluates for the Python that runs it. MARKERS is a JSON object of those that differ in the image (PEP 508).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable


def main() -> None:
    """Runs pip; ends the process with its exit code, or with a sentence where this pip cannot be made to do so."""
    import pip
    from pip._internal.cli.main import main as run
    from pip._vendor.packaging import markers

    ours: dict[str, str] = json.loads(sys.argv[1])
    own: Callable[[], dict[str, str]] | None = getattr(markers, "default_environment", None)
    if own is None:
        sys.exit(
            f"ERROR: pip {pip.__version__} evaluates conditions in a way that fairlead does not know"
        )
    setattr(markers, "default_environment", lambda: own() | ours)  # noqa: B010
    sys.argv[:] = ["pip", *sys.argv[2:]]
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
