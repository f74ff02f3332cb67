"""A plot as SVG text: for each measure a panel of bars, one per contender."""

from collections.abc import Mapping
from html import escape

WIDTH, LABEL, BAR, GAP = 760, 250, 16, 6
COLOURS = {"bare": "#8a8f98", "toolkit": "#0b7285", "ray": "#e8590c"}
OTHER = "#c5a880"


def plot(panels: Mapping[str, Mapping[str, tuple[str, float]]]) -> str:
    """Panel title → contender → (its title, its value); the longest bar of a panel is the largest value."""
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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
