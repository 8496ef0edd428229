"""Compute line and bar charts over days for the admin, as SVG: from zero and with direct labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

WIDTH, HEIGHT = 560, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 64, 14, 24
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
class Chart:
    """A chart in drawing units, with lines or bars. `ticks` label its scale and `days` its time axis."""

    title: str
    lines: list[Series]
    bars: list[Bar]
    ticks: list[Tick]
    days: list[Tick]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    floor: int = HEIGHT - BOTTOM

    @property
    def right(self) -> int:
        """Return the x coordinate at which the scale ends and the labels begin."""
        return self.width - RIGHT

    @property
    def is_empty(self) -> bool:
        return not self.bars and not any(line.marks for line in self.lines)


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
    lines = [_build_series(label, tone, values, end, days, words) for label, tone, values in series]
    marks = [Tick(_y(value, end), words(value)) for value in ticks]
    return Chart(title, _spread_labels(lines), [], marks, _days(days))


def bar_chart(title: str, days: Sequence[str], values: Sequence[float], words: Callable[[float], str]) -> Chart:
    """Build a bar chart with one bar per day."""
    ticks = _ticks(max(values, default=0.0), times=False)
    end = ticks[-1]
    room = (WIDTH - LEFT - RIGHT) / max(1, len(days))
    bars = [
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
    return Chart(title, [], bars, [Tick(_y(value, end), words(value)) for value in ticks], _days(days))


def _build_series(
    label: str,
    tone: str,
    values: Values,
    end: float,
    days: Sequence[str],
    words: Callable[[float], str],
) -> Series:
    path, marks, pen = "", [], "M"
    for n, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x, y = _x(n, len(values)), _y(value, end)
        path += f"{pen}{x} {y}"
        pen = "L"
        marks.append(Mark(x, y, f"{days[n]}, {label}: {words(value)}"))
    return Series(label, tone, path, marks, marks[-1].y if marks else 0.0)


def _spread_labels(lines: list[Series]) -> list[Series]:
    """Move labels apart by at least one line of text."""
    placed: list[Series] = []
    last = -100.0
    for line in sorted(lines, key=lambda series: series.label_y):
        y = max(line.label_y, last + 13)
        placed.append(Series(line.label, line.tone, line.path, line.marks, y))
        last = y
    return placed


def _x(n: int, count: int) -> float:
    room = (WIDTH - LEFT - RIGHT) / max(1, count)
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


def _days(days: Sequence[str]) -> list[Tick]:
    """Label the first day and every n-th day after it, as many as fit."""
    every = max(1, ceil(len(days) / (WIDTH // 110)))
    shown = list(range(0, len(days), every))
    return [Tick(_x(n, len(days)), days[n]) for n in shown]
