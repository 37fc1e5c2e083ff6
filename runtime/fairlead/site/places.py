"""Where profiles are.

They are looked for in folders, of which a later one comes before an earlier one: those that come with
fairlead, ``/etc/fairlead/sites.d``, the user's own, and what $FAIRLEAD_SITES_EXTRA names. $FAIRLEAD_SITES
takes the place of all of them. A file hides those of its name in earlier folders, unless it extends its
own name: then it is laid over them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.paths import bundled, config_dir

REPLACE, EXTEND = "FAIRLEAD_SITES", "FAIRLEAD_SITES_EXTRA"
SYSTEM = Path("/etc/fairlead/sites.d")


def folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where profiles are looked for; a later folder comes before an earlier one.

    Raises:
        FairleadError: exit code 2; a variable names a folder that there is not. Without what is in it
            another profile would be taken, silently.
    """
    own = bundled("sitecfg")
    usual = (own / "families", own, SYSTEM, config_dir(environ) / "sites")
    return (*(_listed(REPLACE, environ) or usual), *_listed(EXTEND, environ))


def _listed(variable: str, environ: Mapping[str, str]) -> tuple[Path, ...]:
    named = tuple(Path(part) for part in environ.get(variable, "").split(":") if part)
    for folder in named:
        if not folder.is_dir():
            raise fail(
                "site-folder-file" if folder.exists() else "site-folder-missing",
                variable=variable,
                folder=folder,
                quoted_folder=shlex.quote(str(folder)),
            )
    return named


def files(environ: Mapping[str, str] = os.environ) -> dict[str, tuple[Path, ...]]:
    """Every profile's files by its name; the one that comes first is the last."""
    found: dict[str, tuple[Path, ...]] = {}
    for folder in folders(environ):
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
            found[path.stem] = (*found.get(path.stem, ()), path)
    return found
