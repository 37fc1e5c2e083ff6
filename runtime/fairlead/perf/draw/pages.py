"""Templates of this folder, filled: pages that load nothing."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.base.errors import fail
from fairlead.base.text import plain
from fairlead.perf.draw.charts import CHART_STYLE
from fairlead.perf.draw.wording import duration, milliseconds

Number = tuple[str, str, str]  # to be seen from afar: value, unit, note


def page(template: str, **values: Any) -> str:
    """``TEMPLATE.html.j2`` as HTML; every value that it names must be given.

    Raises:
        FairleadError: jinja2 is not installed.
    """
    require_tools("jinja2")
    styles = (CHART_STYLE, Path(__file__).with_name("page.css"))
    style = "".join(path.read_text(encoding="utf-8") for path in styles)
    html: str = _compiled(template).render(style=style, fairlead_version=__version__, **values)
    return html


@functools.cache
def _compiled(template: str) -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["ms"] = milliseconds
    environment.filters["duration"] = duration
    path = Path(__file__).with_name(f"{template}.html.j2")
    return environment.from_string(path.read_text(encoding="utf-8"))


def _shown(value: Any) -> Any:
    """A value as the page has it: no control character turns what stands around it, or says what it is not."""
    return plain(value) if type(value) is str else value  # markup has its own type


def require_tools(*names: str) -> None:
    """Reports missing packages at once, not after an hour of training.

    Args:
        names: packages that a report needs; by default jinja2 and NumPy.
    Raises:
        FairleadError: one of them is not installed.
    """
    for module in names or ("jinja2", "numpy"):
        if importlib.util.find_spec(module) is None:
            raise fail("report-extra", module=module)
