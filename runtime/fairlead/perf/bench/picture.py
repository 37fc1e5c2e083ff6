"""The margin as a picture: an SVG of bars that needs nothing else, on light and on dark pages."""

from __future__ import annotations

import html

from fairlead.perf.bench.results import Estimate, PeerResult, PeersBench
from fairlead.perf.draw.wording import count

_WIDTH, _LEFT, _ROW, _TOP, _BOTTOM = 860, 238, 30, 74, 44
_RIGHT = 150
_FARTHEST = 1.5  # where the axis ends at the latest; an interval that goes on has no cap there
_STYLE = (
    "svg{font:13px system-ui,sans-serif;background:#fff}text{fill:#22262a}.m{fill:#5b636b}.o{fill:#0b6e99}"
    ".p{fill:#b9bfc6}.g{stroke:#dde1e5}.i{stroke:#22262a;stroke-width:1.4}.h{font-size:16px;font-weight:600}.e{text-anchor:end}"
    ".c{text-anchor:middle}@media(prefers-color-scheme:dark){svg{background:#16191c}text{fill:#e8eaec}.m{fill:#a5adb5}"
    ".o{fill:#3aa6d4}.p{fill:#5a636c}.g{stroke:#343a40}.i{stroke:#e8eaec}}"
)


def picture(bench: PeersBench) -> str:
    """Step efficiency of every peer, with its interval, and the samples/s beside it; the best on top.

    One process alone has no efficiency, and a peer that was not run none either: it is listed in words.
    """
    shown = sorted(
        (p for p in bench.peers if p.efficiency is not None),
        key=lambda p: -p.efficiency.value if p.efficiency else 0.0,
    )
    missing = [p for p in bench.peers if p.outcome.value in ("failed", "not run")]
    height = _TOP + _ROW * (len(shown) + len(missing)) + _BOTTOM
    ends = (_most(p.efficiency) for p in shown if p.efficiency)
    top = max([1.0, *(min(end, _FARTHEST) for end in ends)]) * 1.04
    tiny = ", tiny inputs" if bench.size == "tiny" else ""
    title = f"{bench.title}: step efficiency on {count(bench.ranks, 'rank')}{tiny}"
    words = (
        f"a step without communication over one with it; {count(bench.rounds, 'round')}, with the interval of the"
        " median"
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_e(title)}">',
        f"<style>{_STYLE}</style>",
        f'<text x="16" y="28" class="h">{_e(title)}</text><text x="16" y="50" class="m">{_e(words)}</text>',
    ]
    end = _TOP + _ROW * len(shown)
    out.append(f'<text x="{_WIDTH - 16}" y="{_TOP - 6}" class="e m">samples/s</text>')
    for percent in range(0, int(100 * top) + 1, 20):
        x = _x(percent / 100, top)
        out.append(f'<path class="g" d="M{x:.1f} {_TOP}V{end}"/>')
        out.append(f'<text x="{x:.1f}" y="{end + 18}" class="c m">{percent} %</text>')
    for at, peer in enumerate(shown):
        out += _bar(peer, _TOP + _ROW * at, top)
    for at, peer in enumerate(missing):
        y = end + 30 + _ROW * at + 12
        out.append(
            f'<text x="{_LEFT - 12}" y="{y}" class="e">{_e(peer.title)}</text>'
            f'<text x="{_LEFT}" y="{y}" class="m">{_e(peer.outcome.value)}: {_e(peer.why[:70])}</text>'
        )
    return "\n".join([*out, "</svg>", ""])


def _bar(peer: PeerResult, y: int, top: float) -> list[str]:
    assert peer.efficiency is not None
    seen, middle = peer.efficiency, y + _ROW / 2
    mine = "o" if "fairlead" in peer.name else "p"
    end = _x(min(seen.value, top), top)
    rate = f"{peer.samples_per_s.value:.3g}" if peer.samples_per_s else ""
    tip = f"{peer.title}: {100 * seen.value:.1f} %{_interval(seen)}"
    mark = " (wrong)" if peer.outcome.value == "wrong" else ""
    out = [
        f'<text x="{_LEFT - 12}" y="{middle + 4}" class="e">{_e(peer.title)}{mark}</text>',
        f'<path class="{mine}" d="M{_LEFT} {y + 5}H{end:.1f}V{y + _ROW - 5}H{_LEFT}z"><title>{_e(tip)}</title></path>',
    ]
    if seen.low is not None and seen.high is not None:
        low, high = (_x(min(v, top), top) for v in (seen.low, seen.high))
        cap = f"M{high:.1f} {middle - 4}v8" if seen.high <= top else ""
        out.append(
            f'<path class="i" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8{cap}"/>'
        )
    right = _WIDTH - _RIGHT + 12
    out.append(
        f'<text x="{right}" y="{middle + 4}">{100 * seen.value:.0f} %</text>'
        f'<text x="{_WIDTH - 16}" y="{middle + 4}" class="e m">{_e(rate)}</text>'
    )
    return out


def _most(seen: Estimate) -> float:
    return seen.value if seen.high is None else seen.high


def _interval(seen: Estimate) -> str:
    if seen.low is None or seen.high is None:
        return ""
    return f" [{100 * seen.low:.1f}, {100 * seen.high:.1f}]"


def _x(value: float, top: float) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * value / top


def _e(text: str) -> str:
    return html.escape(text)
