"""The JSON Schema of ``sitecfg/NAME.toml``, for editors; see :mod:`fairlead.base.json_schema`.

It knows the shape of a profile. That every value says where it comes from, and that a base is there,
is checked when the profile is read (:mod:`fairlead.site.layers`).
"""

from __future__ import annotations

from typing import Any

from fairlead.base.json_schema import schema_of, schema_text
from fairlead.site.profile import SiteProfile


def schema() -> dict[str, Any]:
    """The schema as data."""
    return schema_of(SiteProfile)


def text() -> str:
    """The schema as it is published."""
    return schema_text(schema())
