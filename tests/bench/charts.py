# SPDX-License-Identifier: Apache-2.0
"""The two charts: where a start's time goes, and what one more file or GPU costs.  Pure.

Must not: show a figure that the JSON does not have.
"""

from __future__ import annotations

from typing import Any

from tests.bench import svg

# Apart from one another for those who see fewer colours too (Okabe and Ito's, and greys).
COLOURS = {
    "interpreter": "#999999",
    "imports": "#56b4e9",
    "reading": "#009e73",
    "plan": "#f0e442",
    "mounts": "#d55e00",
    "cgroup": "#cc79a7",
    "cache": "#0072b2",
    "labels": "#7f3c8d",
    "records": "#8c6d31",
    "hook and errors": "#e69f00",
    "door and shutdown": "#cfcfcf",
}
_ROW, _TOP, _LEFT, _RIGHT = 46, 70, 250, 760


def start(bench: dict[str, Any]) -> str:
    """One bar a path, in pieces by what took the time."""
    paths = list(bench["phases"]["paths"].values())
    bare = bench["phases"]["bare"]
    longest = max(sum(path["phases"].values()) for path in paths)
    scale = svg.Scale(longest * 1.08, _LEFT, _RIGHT)
    bottom = _TOP + _ROW * len(paths)
    shapes = [
        svg.text(20, 28, "Where the time of a container start's hook goes", size=17, bold=True),
        svg.text(
            20,
            48,
            f"{bench['machine']['python']}, {bench['machine']['runtime']}, {bench['date']}",
            size=12,
        ),
    ]
    for tick in scale.ticks():
        shapes.append(svg.line([(scale(tick), _TOP), (scale(tick), bottom)], svg.GRID))
        shapes.append(svg.text(scale(tick), bottom + 18, svg.number(tick), anchor="middle"))
    middle = (_LEFT + _RIGHT) / 2
    shapes.append(svg.text(middle, bottom + 40, "milliseconds, median", anchor="middle"))
    for place, path in enumerate(paths):
        shapes += _bar(scale, _TOP + _ROW * place + 8, path)
    shapes.append(svg.line([(scale(bare), _TOP), (scale(bare), bottom)], svg.INK, 1.5, "5 4"))
    used = [
        (name, COLOURS[name]) for name in COLOURS if any(path["phases"][name] for path in paths)
    ]
    shapes += svg.legend(
        _RIGHT + 40, _TOP + 20, [*used, ("bare interpreter, left at once: dashed", svg.PAPER)]
    )
    return svg.image(1080, bottom + 60, shapes)


def _bar(scale: svg.Scale, y: float, path: dict[str, Any]) -> list[str]:
    shapes = [svg.text(_LEFT - 10, y + 20, path["title"], anchor="end")]
    begin = 0.0
    for name, taken in path["phases"].items():
        width = scale(begin + taken) - scale(begin)
        if taken:
            title = f"{name}: {taken:.2f} ms"
            shapes.append(svg.rectangle(scale(begin), y, width, 30, COLOURS[name], title))
        begin += taken
    return [*shapes, svg.text(scale(begin) + 6, y + 20, f"{begin:.1f}")]


def growth(bench: dict[str, Any]) -> str:
    """A panel for each series: measured points, the line through them, and the line that the goal allows."""
    series = list(bench["growth"].values())
    shapes = [
        svg.text(20, 28, "What one more mounted file, and one more GPU, cost", size=17, bold=True),
        svg.text(
            20,
            48,
            f"{bench['machine']['python']}, {bench['machine']['runtime']}, {bench['date']}",
            size=12,
        ),
    ]
    for place, one in enumerate(series):
        shapes += _panel(one, 90 + 480 * place, 90, 370, 280)
    return svg.image(30 + 480 * len(series), 450, shapes)


def _panel(
    series: dict[str, Any], left: float, top: float, width: float, height: float
) -> list[str]:
    points = series["points"]
    first, last = points[0], points[-1]
    allowed = first[1] + (last[0] - first[0]) * series["goal_us"] / 1000
    across = svg.Scale(last[0] * 1.04, left, left + width)
    up = svg.Scale(max([allowed, *[y for _, y in points]]) * 1.1, top + height, top)
    shapes = []
    for tick in up.ticks():
        shapes.append(svg.line([(left, up(tick)), (left + width, up(tick))], svg.GRID))
        shapes.append(svg.text(left - 8, up(tick) + 4, svg.number(tick), anchor="end"))
    for tick in across.ticks():
        shapes.append(svg.text(across(tick), top + height + 18, svg.number(tick), anchor="middle"))
    shapes.append(
        svg.line([(left, top), (left, top + height), (left + width, top + height)], svg.INK)
    )
    goal = [(across(first[0]), up(first[1])), (across(last[0]), up(allowed))]
    shapes.append(svg.line(goal, svg.GOAL, 1.5, "6 4"))
    shapes.append(svg.line([(across(x), up(y)) for x, y in points], "#0072b2", 2))
    shapes += [svg.dot(across(x), up(y), "#0072b2", f"{x}: {y:.2f} ms") for x, y in points]
    middle = left + width / 2
    measured = f"measured: {series['marginal_us']:.1f} us each"
    entries = [(measured, "#0072b2"), (f"goal, dashed: {series['goal_us']:.0f} us each", svg.GOAL)]
    return [
        *shapes,
        svg.text(middle, top + height + 42, series["axis"], anchor="middle"),
        svg.text(left - 48, top + height / 2, "hook alone, ms, median", anchor="middle", turn=True),
        *svg.legend(left + 16, top + height - 40, entries),
    ]
