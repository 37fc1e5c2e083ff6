"""The picture of the rooms in ARCHITECTURE.md: which room imports which, measured from the code.

``python -m tools.rooms`` writes it between its marks; a test compares. Only direct arrows are drawn: what a
room reaches through another is left out. Imports inside functions count.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "fairlead": ROOT / "runtime/fairlead",
    "fairlead_build": ROOT / "containers/fairlead_build",
}
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- rooms: begin -->", "<!-- rooms: end -->"


def rooms(package: str, folder: Path) -> dict[str, set[str]]:
    """For each room of a package, the rooms that it imports."""
    names = {path.name for path in folder.iterdir() if (path / "__init__.py").is_file()}
    arrows: dict[str, set[str]] = {name: set() for name in names}
    for name in names:
        for path in (folder / name).rglob("*.py"):
            arrows[name] |= {
                parts[1]
                for module in _imported(path)
                if (parts := module.split("."))[0] == package and len(parts) > 1
            } & names - {name}
    return arrows


def _imported(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def reduced(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that no path of others stands for.

    Raises:
        ValueError: there is a cycle.
    """
    reached: dict[str, set[str]] = {}

    def reach(room: str, path: tuple[str, ...] = ()) -> set[str]:
        if room in path:
            raise ValueError(f"a cycle: {' -> '.join((*path, room))}")
        if room not in reached:
            below = [{other} | reach(other, (*path, room)) for other in arrows[room]]
            reached[room] = set().union(*below)
        return reached[room]

    for room in arrows:
        reach(room)
    return {
        room: {b for b in others if not any(b in reached[c] for c in others - {b})}
        for room, others in arrows.items()
    }


def picture() -> str:
    """Both packages, as a Mermaid graph."""
    lines = ["```mermaid", "graph TD"]
    for package, folder in PACKAGES.items():
        lines.append(f"  subgraph {package}")
        drawn = reduced(rooms(package, folder))
        for room in sorted(drawn):
            lines.append(f"    {package}.{room}[{room}]")
            lines += [
                f"    {package}.{room} --> {package}.{other}" for other in sorted(drawn[room])
            ]
        lines.append("  end")
    return "\n".join([*lines, "```"])


def written(page: str) -> str:
    """``page`` with the picture between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{picture()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
