"""Draw plots as SVG text. Each measure has a panel with a bar or a curve per contender."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, LABEL, BAR, GAP = 760, 250, 16, 6
COLOURS = {"bare": "#8a8f98", "toolkit": "#0b7285", "ray": "#e8590c"}
OTHER = "#c5a880"
HEIGHT, MARGIN, LEGEND = 150, 50, 190
DASHES = ("", "5 4")


def plot(panels: Mapping[str, Mapping[str, tuple[str, float]]]) -> str:
    """Draw bars. `panels`: by panel title and contender, the label and the value of the bar."""
    body, y = [], 10
    for title, bars in panels.items():
        y += 16
        body.append(_text(10, y, title, weight="bold"))
        y += 10
        longest = max(value for _, value in bars.values())
        for name, (label, value) in bars.items():
            width = (WIDTH - LABEL - 80) * value / longest
            colour = COLOURS.get(name.partition("-")[0], OTHER)
            body.append(_text(LABEL - 8, y + 12, label, anchor="end"))
            body.append(f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
            body.append(_text(LABEL + width + 6, y + 12, f"{value:,.0f}"))
            y += BAR + GAP
        y += 10
    return _svg(body, y)


def curves(panels: Mapping[str, Mapping[str, tuple[str, Sequence[tuple[float, float]]]]]) -> str:
    """Draw curves. `panels`: by panel title and contender, the label and the points of the curve.

    All panels share the x axis. Contenders of the same colour have different dashes.
    """
    every = [point for lines in panels.values() for _, points in lines.values() for point in points]
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    scale = (WIDTH - MARGIN - LEGEND - 10) / (right - left)
    body, y = [], 10
    for title, lines in panels.items():
        y += 16
        body.append(_text(10, y, title, weight="bold"))
        y += 10
        top = max(value for _, points in lines.values() for _, value in points)
        bottom = y + HEIGHT
        body.append(f'<path d="M{MARGIN} {y}V{bottom}H{WIDTH - LEGEND - 10}" fill="none" stroke="#ccc"/>')
        body += [_text(MARGIN - 6, y + 10, f"{top:,.0f}", anchor="end"), _text(MARGIN - 6, bottom, "0", anchor="end")]
        for tick in range(math.ceil(left / 10) * 10, math.floor(right) + 1, 10):
            body.append(_text(MARGIN + (tick - left) * scale, bottom + 14, str(tick), anchor="middle"))
        drawn: list[str] = []
        for number, (name, (label, points)) in enumerate(lines.items()):
            colour = COLOURS.get(name.partition("-")[0], OTHER)
            dash = DASHES[drawn.count(colour) % len(DASHES)]
            drawn.append(colour)
            way = " ".join(
                f"{MARGIN + (x - left) * scale:.1f},{bottom - HEIGHT * value / (top or 1):.1f}" for x, value in points
            )
            line = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
            body.append(f'<polyline points="{way}" {line}/>')
            row = y + 12 + 18 * number
            body.append(f'<path d="M{WIDTH - LEGEND} {row - 4}h24" {line}/>')
            body.append(_text(WIDTH - LEGEND + 30, row, label))
        y = bottom + 24
    return _svg(body, y)


def _svg(body: Sequence[str], height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
