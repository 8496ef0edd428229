"""Compute line and bar charts over days for the admin, as SVG: from zero and with direct labels.

A browser scales a drawing with its labels. So each chart has two drawings, a wide and a narrow one, and the style
sheet shows the one whose labels are readable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

HEIGHT, TOP, BOTTOM = 194, 14, 28
# Room for the labels of the scale, for those of lines, and beside bars.
LEFT, BESIDE_LINES, BESIDE_BARS = 66, 88, 30
# Room for the label of a day.
DAY_WIDTH = 84
STEPS = (1, 2, 5, 10)
# Steps of a time axis, in seconds.
TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)


@dataclass(frozen=True)
class Mark:
    """A day's value; `words` is shown on hover."""

    x: float
    y: float
    words: str


@dataclass(frozen=True)
class Series:
    """A line of the chart. `path`: its SVG path data. `label_y`: where its label is placed."""

    label: str
    tone: str
    path: str
    marks: list[Mark]
    label_y: float


@dataclass(frozen=True)
class Bar:
    """The bar of one day; `words` is shown on hover."""

    x: float
    y: float
    width: float
    height: float
    words: str


@dataclass(frozen=True)
class Tick:
    """A label on an axis, at this coordinate."""

    at: float
    words: str


@dataclass(frozen=True)
class Drawing:
    """A chart in drawing units. `ticks` label its scale, which ends at x = `right`, and `days` its time axis."""

    name: str
    width: int
    right: int
    lines: list[Series]
    bars: list[Bar]
    ticks: list[Tick]
    days: list[Tick]
    height: int = HEIGHT
    left: int = LEFT
    floor: int = HEIGHT - BOTTOM


@dataclass(frozen=True)
class Chart:
    """A chart with lines or bars, drawn for wide and for narrow pages."""

    title: str
    drawings: list[Drawing]

    @property
    def is_empty(self) -> bool:
        first = self.drawings[0]
        return not first.bars and not any(line.marks for line in first.lines)


# Name of a drawing → its width.
WIDTHS = {"wide": 560, "narrow": 300}


Values = Sequence[float | None]


def line_chart(
    title: str,
    days: Sequence[str],
    series: Sequence[tuple[str, str, Values]],
    words: Callable[[float], str],
    *,
    top: float | None = None,
    times: bool = False,
) -> Chart:
    """Build a line chart.

    `series`: (label, tone, one value per day; None leaves a gap). `top`: end of the scale, by default a round
    number above the highest value. `times`: values are seconds.
    """
    highest = max((value for _, _, values in series for value in values if value is not None), default=0.0)
    ticks = _ticks(top or highest, times)
    end = ticks[-1]
    marks = [Tick(_y(value, end), words(value)) for value in ticks]
    drawings = []
    for name, width in WIDTHS.items():
        right = width - BESIDE_LINES
        lines = [_build_series(label, tone, values, end, days, words, right) for label, tone, values in series]
        drawings.append(Drawing(name, width, right, _spread_labels(lines), [], marks, _days(days, right)))
    return Chart(title, drawings)


def bar_chart(title: str, days: Sequence[str], values: Sequence[float], words: Callable[[float], str]) -> Chart:
    """Build a bar chart with one bar per day."""
    ticks = _ticks(max(values, default=0.0), times=False)
    end = ticks[-1]
    marks = [Tick(_y(value, end), words(value)) for value in ticks]
    drawings = []
    for name, width in WIDTHS.items():
        right = width - BESIDE_BARS
        bars = _bars(days, values, end, words, right)
        drawings.append(Drawing(name, width, right, [], bars, marks, _days(days, right)))
    return Chart(title, drawings)


def _bars(
    days: Sequence[str], values: Sequence[float], end: float, words: Callable[[float], str], right: int
) -> list[Bar]:
    room = (right - LEFT) / max(1, len(days))
    return [
        Bar(
            round(LEFT + n * room + room * 0.12, 1),
            _y(value, end),
            round(max(1.0, room * 0.76), 1),
            round(HEIGHT - BOTTOM - _y(value, end), 1),
            f"{day}: {words(value)}",
        )
        for n, (day, value) in enumerate(zip(days, values, strict=True))
        if value
    ]


def _build_series(
    label: str,
    tone: str,
    values: Values,
    end: float,
    days: Sequence[str],
    words: Callable[[float], str],
    right: int,
) -> Series:
    path, marks, pen = "", [], "M"
    for n, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x, y = _x(n, len(values), right), _y(value, end)
        path += f"{pen}{x} {y}"
        pen = "L"
        marks.append(Mark(x, y, f"{days[n]}, {label}: {words(value)}"))
    return Series(label, tone, path, marks, marks[-1].y if marks else 0.0)


def _spread_labels(lines: list[Series]) -> list[Series]:
    """Move labels apart by at least one line of text."""
    placed: list[Series] = []
    last = -100.0
    for line in sorted(lines, key=lambda series: series.label_y):
        y = max(line.label_y, last + 14)
        placed.append(Series(line.label, line.tone, line.path, line.marks, y))
        last = y
    return placed


def _x(n: int, count: int, right: int) -> float:
    room = (right - LEFT) / max(1, count)
    return round(LEFT + (n + 0.5) * room, 1)


def _y(value: float, end: float) -> float:
    high = HEIGHT - TOP - BOTTOM
    return round(TOP + high * (1 - min(value, end) / end), 1)


def _ticks(highest: float, times: bool) -> list[float]:
    """Return two to five equal round steps from 0 to at least the highest value."""
    if highest <= 0:
        return [0.0, 1.0]
    if times:
        step = float(
            next((size for size in TIME_STEPS if highest / size <= 4), ceil(highest / 4 / 86_400) * 86_400)
        )
    else:
        power = 10.0 ** floor(log10(highest / 4))
        step = next(size * power for size in STEPS if highest / (size * power) <= 4.000001)
    return [n * step for n in range(ceil(highest / step - 1e-9) + 1)]


def _days(days: Sequence[str], right: int) -> list[Tick]:
    """Label the first day and every n-th day after it, as many as fit."""
    every = max(1, ceil(len(days) * DAY_WIDTH / (right - LEFT)))
    shown = list(range(0, len(days), every))
    return [Tick(_x(n, len(days), right), days[n]) for n in shown]
