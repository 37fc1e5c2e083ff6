"""What pages get when the site is built, from the program itself: ``<!-- render: NAME -->``.

Neither is kept in docs/: the command line's options are those of ``--help``, the keys of a profile
those of its schema.
"""

from __future__ import annotations

import re

from tools import command_line, site_reference

PARTS = {
    "verbs": command_line.verbs_section,
    "settings": command_line.settings_section,
    "profile-keys": site_reference.keys_section,
}
_MARK = re.compile(r"^<!-- render: ([a-z-]+) -->$", re.MULTILINE)


def rendered(markdown: str) -> str:
    """A page with its marked parts filled in.

    Raises:
        KeyError: a mark names no part.
    """
    return _MARK.sub(lambda mark: PARTS[mark[1]](), markdown)
