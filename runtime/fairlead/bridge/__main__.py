"""``python3 -m fairlead.bridge SETTINGS``: a rank, once the image is known to have what it needs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from fairlead.bridge.settings import ENDED, NEEDED, write_private


def main() -> None:
    missing = []
    for module in NEEDED:
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(module)
    if missing:
        folder = json.loads(Path(sys.argv[1]).read_text("utf-8"))["folder"]
        why = (
            f"the image lacks {', '.join(missing)}; the recipes `bridge` and `analytics` have them"
        )
        write_private(Path(folder, ENDED), why)
        sys.exit(why)
    from fairlead.bridge.worker import main as work

    work()


if __name__ == "__main__":
    main()
