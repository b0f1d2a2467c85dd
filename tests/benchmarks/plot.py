"""A graph of lines as SVG: few points, both axes linear from zero."""

from __future__ import annotations

from collections.abc import Mapping

_WIDE, _HIGH, _LEFT, _BELOW = 640, 400, 60, 50
_COLOURS = ("#1f77b4", "#d62728")


def drawn(lines: Mapping[str, Mapping[int, float]]) -> str:
    """The lines by name, each a value by count."""
    most_x = max(count for line in lines.values() for count in line)
    most_y = max(value for line in lines.values() for value in line.values()) * 1.05

    def at(count: float, value: float) -> str:
        x = _LEFT + (_WIDE - _LEFT - 20) * count / most_x
        return f"{x:.1f},{_HIGH - _BELOW - (_HIGH - _BELOW - 20) * value / most_y:.1f}"

    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12"',
        f' viewBox="0 0 {_WIDE} {_HIGH}">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<polyline points="{at(0, most_y)} {at(0, 0)} {at(most_x, 0)}" fill="none" stroke="black"/>',
        f'<text x="{_WIDE / 2}" y="{_HIGH - 10}" text-anchor="middle">engines watched, every second</text>',
        '<text x="8" y="14">ms of processor time per second</text>',
    ]
    for count in (0, most_x // 4, most_x // 2, most_x):
        x, y = at(count, 0).split(",")
        out.append(f'<text x="{x}" y="{float(y) + 16}" text-anchor="middle">{count}</text>')
    for part in (0.25, 0.5, 0.75, 0.95):
        x, y = at(0, most_y * part).split(",")
        out.append(f'<text x="{float(x) - 6}" y="{y}" text-anchor="end">{most_y * part:.0f}</text>')
    for row, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[row % len(_COLOURS)]
        points = [at(count, value) for count, value in line.items()]
        out.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for point in points:
            x, y = point.split(",")
            out.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
        out.append(f'<text x="{_LEFT + 16}" y="{40 + 16 * row}" fill="{colour}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
