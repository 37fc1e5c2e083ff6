"""MkDocs hooks: files of the repository that pages link to become part of the site.

MkDocs publishes docs/ only, and the pages link to examples, sources and results next to it. Text
becomes a highlighted page under ``repository/``, anything else a copy; a link to what does not
exist fails the strict build, like any other broken link.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files
from tools.rendered import rendered

ROOT = Path(__file__).parents[1]
FOLDER = "repository"
SHIM = "assets/iframe-worker.js"  # mkdocs.yml names it; else the offline plugin asks a CDN
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
_NAMED_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_HEAD = "---\nsearch:\n  exclude: true\nhide: [navigation]\n---\n"
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_COPIED = {".svg", ".png", ".json"}
_LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".c": "c", ".h": "c", ".cpp": "cpp"}


def _target(source: str, link: str) -> str:
    """The path from the repository's root that a page's link leads to; "" inside docs/."""
    path = os.path.normpath(PurePosixPath("docs", source).parent / link)
    inside = path.startswith(("docs/", "..", "/"))
    return "" if inside or not (ROOT / path).is_file() else path


def _published(path: str) -> str:
    """Where a file of the repository lies in the site's source."""
    plain = Path(path).suffix in {*_COPIED, ".md"}
    return f"{FOLDER}/{path}" if plain else f"{FOLDER}/{path}.md"


def _rewritten(markdown: str, source: str) -> str:
    """A page's text with links to the repository's files turned to their copies in the site."""

    def turn(match: re.Match[str]) -> str:
        path = _target(source, match[2])
        if not path:
            return match[0]
        return (
            f"{match[1]}{os.path.relpath(_published(path), PurePosixPath(source).parent)}{match[3]}"
        )

    parts = re.split(f"({_FENCE.pattern})", markdown, flags=_FENCE.flags)
    return "".join(part if part.startswith("```") else _LINK.sub(turn, part) for part in parts)


def _source(path: str) -> str:
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{(ROOT / path).read_text()}````\n"


def _document(path: str) -> str:
    """A document of the repository; its links to other files of the repository become text."""
    depth = "../" * (len(PurePosixPath(path).parts))

    def turn(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(path).parent / match[2]) if match[2] else ""
        if match[2].startswith(("http:", "https:")) or not target:
            return match[0]
        if target.startswith("docs/"):
            return f"[{match[1]}]({depth}{target[5:]}{match[3] or ''})"
        return match[1]

    return _NAMED_LINK.sub(turn, (ROOT / path).read_text())


def on_files(files: Files, config: Any) -> Files:
    """Adds what pages link to outside of docs/, and what lets search run without a server."""
    files.append(File.generated(config, SHIM, abs_src_path=str(ROOT / "tools/iframe-worker.js")))
    linked = {
        path
        for page in files.documentation_pages()
        for _, link, _ in _LINK.findall(_FENCE.sub("", page.content_string))
        if (path := _target(page.src_uri, link))
    }
    for path in sorted(linked):
        name = _published(path)
        if name.endswith(".md"):
            page = _HEAD + (_document if path.endswith(".md") else _source)(path)
            files.append(File.generated(config, name, content=page))
        else:
            files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fills in rendered parts, and turns links that leave docs/ to the files added above."""
    source = page.file.src_uri
    return markdown if source.startswith(FOLDER) else _rewritten(rendered(markdown), source)
