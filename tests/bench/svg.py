# SPDX-License-Identifier: Apache-2.0
"""A few SVG shapes, enough for bars and lines with axes.  Pure.

Must not: know what is drawn, or need anything of whoever shows it but a sans-serif font.
"""

from __future__ import annotations

import math
from typing import NamedTuple
from xml.sax.saxutils import escape

INK, GRID, PAPER, GOAL = "#222222", "#dddddd", "#ffffff", "#c0392b"


class Scale(NamedTuple):
    """From values, 0 to `top`, to points, `begin` to `end`."""

    top: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        return self.begin + (self.end - self.begin) * value / self.top

    def ticks(self) -> list[float]:
        """Some five round values."""
        step = round_up(self.top / 6)
        return [step * number for number in range(int(self.top / step + 1e-9) + 1)]


def round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value - 1e-12)


def text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    size: int = 13,
    bold: bool = False,
    turn: bool = False,
) -> str:
    """Words at a point; turned, they read upwards."""
    weight = ' font-weight="bold"' if bold else ""
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {where}{weight}{turned} fill="{INK}">{escape(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, colour: str, title: str = "") -> str:
    """A filled rectangle; the title shows where somebody points at it."""
    shape = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"'
    )
    return f"{shape}><title>{escape(title)}</title></rect>" if title else f"{shape}/>"


def line(points: list[tuple[float, float]], colour: str, width: float = 1, dashes: str = "") -> str:
    """A line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'
    )


def dot(x: float, y: float, colour: str, title: str) -> str:
    """A measured point."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{escape(title)}</title></circle>'


def legend(x: float, y: float, entries: list[tuple[str, str]]) -> list[str]:
    """Colours and what they mean, one below the other."""
    shapes = []
    for place, (name, colour) in enumerate(entries):
        top = y + 20 * place
        shapes += [rectangle(x, top - 11, 13, 13, colour), text(x + 20, top, name)]
    return shapes


def number(value: float) -> str:
    """A tick's value without what it does not need."""
    return f"{value:.6g}"


def image(width: int, height: int, shapes: list[str]) -> str:
    """A whole file, on white whatever is behind it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif">\n'
        "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
    )
    return head + "\n".join([rectangle(0, 0, width, height, PAPER), *shapes]) + "\n</svg>\n"
