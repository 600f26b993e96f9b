"""A comparison as SVG: speedups with their errors, acceptance by position, cost by rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

from headstart.extras.bench.comparison import BY_HAND, Cell, Score, Scores, bases, own_arm
from headstart.extras.bench.report import MeanRatio

# Okabe and Ito's colours, which colour-blind people can distinguish
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
LABELS, WIDTH, LINE, GAP, CHART = 190, 760, 22, 56, 220  # pixels
Point = tuple[float, float]


def picture(scores: Scores, cost_ms: Mapping[str, float]) -> str:
    """The SVG file.

    Args:
        cost_ms: milliseconds of a step by rows; may be empty.
    """
    body, height = _speedups(scores, 40.0)
    curves = _acceptance(scores)
    half = (WIDTH - GAP) / 2
    if curves:
        axes = ("position in the draft", "share accepted")
        body += _chart((0.0, height, half), curves, axes, most=1.0)
    if rows := sorted((int(n), ms) for n, ms in cost_ms.items() if int(n) <= 32):
        axes = ("rows of a step", "milliseconds")
        body += _chart((half + GAP, height, half), {"": [(float(n), ms) for n, ms in rows]}, axes)
    height += CHART + GAP + LINE * bool(curves)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>',
            *body,
            "</svg>",
        ]
    )


def _speedups(scores: Scores, top: float) -> tuple[list[str], float]:
    """A line for each cell: the ratio of each arm shown to the first; also returns their end."""
    lines = {cell: dict(_points(scores, cell)) for cell in scores}
    names = list(dict.fromkeys(name for points in lines.values() for name in points))
    edges = [edge for points in lines.values() for one in points.values() for edge in _ends(one)]
    least, most = min([0.9, *edges]), max([1.1, *edges])
    first = next(iter(next(iter(scores.values()))))

    def place(ratio: float) -> float:
        return LABELS + (ratio - least) / (most - least) * (WIDTH - LABELS - 20)

    bottom = top + LINE * len(lines)
    body = _legend(names, 20.0)
    for tick in _ticks(least, most):
        body.append(_line((place(tick), top - 6), (place(tick), bottom), "#ddd"))
        body.append(_word(place(tick), bottom + 16, f"{tick:g}", "middle"))
    body.append(_line((place(1.0), top - 6), (place(1.0), bottom), "#444"))
    body.append(_word(WIDTH - 20, bottom + 32, f"speed in multiples of {first}", "end"))
    for number, (cell, points) in enumerate(lines.items()):
        y = top + LINE * (number + 0.5)
        users = f"{cell.users} user{'s' * (cell.users > 1)}"
        about = f"{cell.workload}, {cell.temperature:g}, {users}"
        body.append(_word(LABELS - 12, y + 4, about, "end"))
        for name, ratio in points.items():
            index = names.index(name)
            own_y = y + 5 * (index - (len(names) - 1) / 2)
            low, high = _ends(ratio)
            colour = COLOURS[index % len(COLOURS)]
            body.append(_line((place(low), own_y), (place(high), own_y), colour, 1.5))
            body.append(_dot(place(ratio.mean), own_y, colour))
    return body, bottom + GAP


def _points(scores: Scores, cell: Cell) -> Iterator[tuple[str, MeanRatio]]:
    by_arm = scores[cell]
    first, own = next(iter(by_arm)), own_arm(by_arm)
    for name, arm in ({own: own} | bases(by_arm)).items():
        if arm != first or name == BY_HAND:
            yield name, by_arm[arm].relative_to(by_arm[first])


def _ends(ratio: MeanRatio) -> Point:
    error = ratio.error if ratio.error == ratio.error else 0.0  # NaN: not known
    return ratio.mean - error, ratio.mean + error


def _acceptance(scores: Scores) -> dict[str, list[Point]]:
    """Share of the draft tokens at each position that were accepted, by workload."""
    merged = {cell.workload: Score() for cell in scores}
    for cell, by_arm in scores.items():
        merged[cell.workload].count(by_arm[own_arm(by_arm)].counters)
    return {
        name: [(i, accepted / drafted) for i, (drafted, accepted) in enumerate(rows, 1)]
        for name, score in merged.items()
        if (rows := score.acceptance)
    }


def _chart(
    place: tuple[float, float, float],
    curves: Mapping[str, Sequence[Point]],
    axes: tuple[str, str],
    most: float = 0.0,
) -> list[str]:
    """Curves in a frame: left, top and width; `most` of the vertical axis unless it is found."""
    left, top, width = place
    x_most = max(x for points in curves.values() for x, _ in points)
    y_most = most or 1.05 * max(y for points in curves.values() for _, y in points)
    start, base = left + 44.0, top + CHART

    def put(x: float, y: float) -> Point:
        return start + x / x_most * (width - 54.0), base - y / y_most * (CHART - 34.0)

    body = [_word(left + 6, top + 16, axes[1]), _word(left + width, base + 34, axes[0], "end")]
    for tick in _ticks(0.0, y_most):
        body.append(_line(put(0.0, tick), put(x_most, tick), "#ddd"))
        body.append(_word(start - 6, put(0.0, tick)[1] + 4, f"{tick:g}", "end"))
    for tick in _ticks(0.0, x_most):
        body.append(_word(put(tick, 0.0)[0], base + 16, f"{tick:g}", "middle"))
    for index, points in enumerate(curves.values()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (put(*point) for point in points))
        colour = COLOURS[index % len(COLOURS)]
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [_dot(*put(*point), colour, 2.5) for point in points]
    return body + (_legend(list(curves), base + 52, left) if len(curves) > 1 else [])


def _ticks(least: float, most: float) -> list[float]:
    """Round numbers between two, five to ten."""
    rough = (most - least) / 10.0
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [round(i * step, 6) for i in range(ceil(least / step), int(most / step) + 1)]


def _legend(names: Sequence[str], y: float, x: float = 0.0) -> list[str]:
    body, x = [], x + 12.0
    for index, name in enumerate(names):
        body.append(_dot(x, y - 4, COLOURS[index % len(COLOURS)]))
        body.append(_word(x + 9, y, name))
        x += 26.0 + 7.0 * len(name)
    return body


def _line(start: Point, end: Point, colour: str, width: float = 1.0) -> str:
    (x0, y0), (x1, y1) = start, end
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" '
        f'stroke-width="{width:g}"/>'
    )


def _dot(x: float, y: float, colour: str, radius: float = 4.0) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'


def _word(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
