"""Sites: what a machine is known to be, and which one this is.

:mod:`~fairlead.site.profile` is the format of ``sitecfg/NAME.toml``, :mod:`~fairlead.site.layers` lays
one over another, :mod:`~fairlead.site.model` is what comes of it, :mod:`~fairlead.site.match` says which
holds here.
"""

from __future__ import annotations

from fairlead.site.choose import CHOSEN, all_sites, files, folders, load_site, resolve
from fairlead.site.model import Site, Status

__all__ = ["CHOSEN", "Site", "Status", "all_sites", "files", "folders", "load_site", "resolve"]
