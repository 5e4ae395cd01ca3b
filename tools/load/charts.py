"""Charts as inline SVG, drawn by hand: lines, stacked columns, heat map, percentile curve, state strips.

Pure: numbers in, markup out. Colours are class names whose values the page's style sheet sets for light and dark. Each
chart is drawn twice, for a desk and for a phone, since text in a scaled SVG becomes unreadable.
"""

from __future__ import annotations

import bisect
import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

WIDE, NARROW = 900, 350
HEIGHT = 220
HEAT_STEPS = 9
_LONG_STEPS = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Series:
    """One named line or layer of columns; `colour` is a class of the style sheet (s1, s2 ... or a state)."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    step: bool = False


@dataclass(frozen=True)
class Scale:
    """Map values to pixels, linearly or logarithmically."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; values outside are held at the edge."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = min(max(value, self.low), self.high)
        place = ((math.log(value) if self.log else value) - low) / ((high - low) or 1.0)
        return self.start + place * (self.end - self.start)


def ticks(high: float, at_most: int) -> list[float]:
    """Return round values from 0 up to `high`, at most so many steps apart."""
    if high <= 0:
        return [0.0]
    raw = high / max(at_most, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((factor * power for factor in _STEPS if factor * power >= raw * (1 - 1e-9)), 10.0 * power)
    return [round(step * index, 10) for index in range(int(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between the two; only the powers when that is plenty."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    fine = [value for value in fine if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    plain = [value for value in fine if abs(math.log10(value) - round(math.log10(value))) < 1e-9]
    return plain if len(fine) > 7 and len(plain) > 1 else fine


def short(value: float) -> str:
    """Return a number for an axis: 0, 0.5, 12, 1.5k, 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def duration(ms: float) -> str:
    """Return milliseconds in the unit that people would choose."""
    if ms >= 60_000:
        return f"{ms / 60_000:.3g} min"
    if ms >= 1000:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.3g} ms" if ms >= 0.1 else f"{ms * 1000:.3g} µs"


def clock(seconds: float) -> str:
    """Return a time within the run: 12 s, or 3:20 from one minute on."""
    return f"{seconds:.3g} s" if seconds < 60 else f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def time_ticks(span: float, at_most: int) -> list[tuple[float, str]]:
    """Return moments for the axis of time with their words: plain seconds for a short run, minutes for a long one."""
    if span < 120:
        return [(value, f"{value:.3g} s") for value in ticks(span, at_most)]
    step = next((step for step in _LONG_STEPS if span / step <= at_most), span)
    moments = [step * index for index in range(int(span / step + 1e-9) + 1)]
    return [(value, f"{int(value // 60)}:{int(value % 60):02d}") for value in moments]


def both(draw: Callable[[int], str]) -> str:
    """Draw a chart for a desk and for a phone; the style sheet shows the one that fits."""
    return f'<div class="wide">{draw(WIDE)}</div><div class="narrow">{draw(NARROW)}</div>'


class Plot:
    """One drawing area with its axes; pieces are collected and joined at the end."""

    def __init__(self, width: int, label: str, height: int = HEIGHT) -> None:
        self.width, self.height, self.label = width, height, label
        self.left, self.right, self.top, self.bottom = 52, 10, 10, 26
        self.pieces: list[str] = []

    @property
    def roomy(self) -> bool:
        """Whether this is the wide drawing."""
        return self.width > 600

    def x(self, high: float, low: float = 0.0) -> Scale:
        """Return the horizontal scale."""
        return Scale(low, high, self.left, self.width - self.right)

    def y(self, high: float, low: float = 0.0, log: bool = False) -> Scale:
        """Return the vertical scale."""
        return Scale(low, high, self.height - self.bottom, self.top, log)

    def grid(self, scale: Scale, values: Sequence[float], words: Callable[[float], str]) -> None:
        """Draw a fine line and a word for each value of the vertical axis."""
        for value in values:
            at = scale(value)
            self.pieces.append(f'<path class="grid" d="M{self.left} {at:.1f}H{self.width - self.right}"/>')
            self.pieces.append(f'<text x="{self.left - 6}" y="{at + 4:.1f}" text-anchor="end">{words(value)}</text>')

    def times(self, scale: Scale, span: float) -> None:
        """Draw the axis of time."""
        base = self.height - self.bottom
        self.pieces.append(f'<path class="axis" d="M{self.left} {base}H{self.width - self.right}"/>')
        for value, words in time_ticks(span, 8 if self.roomy else 4):
            at = scale(value)
            anchor = "start" if value == 0 else "end" if at > self.width - self.right - 12 else "middle"
            self.pieces.append(f'<text x="{at:.1f}" y="{base + 17}" text-anchor="{anchor}">{words}</text>')

    def hover(self, left: float, right: float, words: str) -> None:
        """Say something when the pointer rests on a stretch; only drawn where there is a pointer."""
        if self.roomy:
            place = f'x="{left:.1f}" y="{self.top}" width="{max(right - left, 0.5):.1f}"'
            inner = self.height - self.bottom - self.top
            title = f"<title>{html.escape(words)}</title>"
            self.pieces.append(f'<rect class="hover" {place} height="{inner}">{title}</rect>')

    def svg(self) -> str:
        """Return the finished drawing."""
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{html.escape(self.label)}">'
            + "".join(self.pieces)
            + "</svg>"
        )


def legend(series: Sequence[tuple[str, str]]) -> str:
    """Return a row of (name, colour class) keys; nothing for a single series, which its heading names."""
    if len(series) < 2:
        return ""
    keys = "".join(f'<li><i class="{colour}"></i>{html.escape(name)}</li>' for name, colour in series)
    return f'<ul class="legend">{keys}</ul>'


def _path(points: Sequence[tuple[float, float]], step: bool) -> str:
    pieces = []
    for index, (x, y) in enumerate(points):
        if index and step:
            pieces.append(f"H{x:.1f}V{y:.1f}")
        else:
            pieces.append(f"{'L' if index else 'M'}{x:.1f} {y:.1f}")
    return "".join(pieces)


def sparse(points: Sequence[tuple[float, float]], at_most: int = 300) -> list[tuple[float, float]]:
    """Leave out repeated values, then keep the lowest and the highest of each stretch, so that no peak is lost."""
    kept = [
        point
        for index, point in enumerate(points)
        if index in (0, len(points) - 1) or point[1] != points[index - 1][1] or point[1] != points[index + 1][1]
    ]
    if len(kept) <= at_most:
        return kept
    size = math.ceil(2 * len(kept) / at_most)
    chosen: list[tuple[float, float]] = []
    for start in range(0, len(kept), size):
        stretch = kept[start : start + size]
        ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        chosen += sorted(ends)
    return chosen


def lines(label: str, series: Sequence[Series], span: float, unit: str = "", marks: Sequence[float] = ()) -> str:
    """Draw lines over time from zero; `marks` are moments to point at on the base line."""
    high = max((y for one in series for _, y in one.points), default=0.0) or 1.0

    def draw(width: int) -> str:
        plot = Plot(width, label)
        x, y = plot.x(span), plot.y(high * 1.05)
        plot.grid(y, ticks(high * 1.05, 4), short)
        plot.times(x, span)
        for one in series:
            path = _path([(x(at), y(value)) for at, value in one.points], one.step)
            plot.pieces.append(f'<path class="line {one.colour}" d="{path}"/>')
        base = plot.height - plot.bottom
        for at in _thinned(marks, span / width * 3):
            plot.pieces.append(f'<path class="mark" d="M{x(at):.1f} {base}v-8"/>')
        _hover_columns(plot, x, series, unit)
        return plot.svg()

    return legend([(one.name, one.colour) for one in series]) + both(draw)


def _thinned(marks: Sequence[float], apart: float) -> list[float]:
    kept: list[float] = []
    for at in sorted(marks):
        if not kept or at - kept[-1] >= apart:
            kept.append(at)
    return kept


def _hover_columns(plot: Plot, x: Scale, series: Sequence[Series], unit: str) -> None:
    """Tell the values of all lines at up to 120 moments."""
    moments = sorted({at for one in series for at, _ in one.points})
    moments = moments[:: max(1, math.ceil(len(moments) / 120))]
    for at, after in zip(moments, [*moments[1:], x.high], strict=True):
        words = [f"{one.name}: {short(_value_at(one.points, at))}{unit}" for one in series if one.points]
        plot.hover(x(at), x(after), f"{clock(at)}\n" + "\n".join(words))


def _value_at(points: Sequence[tuple[float, float]], at: float) -> float:
    return points[max(bisect.bisect_right(points, at, key=lambda point: point[0]) - 1, 0)][1]


def columns(label: str, layers: Sequence[Series], width_s: float, span: float, unit: str = "") -> str:
    """Draw stacked columns over time, one per bin of `width_s` seconds; points are (bin start, amount)."""
    totals = (
        [sum(layer.points[index][1] for layer in layers) for index in range(len(layers[0].points))] if layers else []
    )
    high = max(totals, default=0.0) or 1.0

    def draw(width: int) -> str:
        plot = Plot(width, label)
        x, y = plot.x(span), plot.y(high * 1.05)
        plot.grid(y, ticks(high * 1.05, 4), short)
        base = [0.0] * len(totals)
        for layer in layers:
            shapes = []
            for index, (at, amount) in enumerate(layer.points):
                if amount > 0:
                    left, right = x(at), x(at + width_s)
                    top, bottom = y(base[index] + amount), y(base[index])
                    gap = 1 if right - left > 4 else 0
                    size = max(right - left - gap, 1)
                    shapes.append(f"M{left:.1f} {bottom:.1f}V{top:.1f}h{size:.1f}V{bottom:.1f}z")
                    base[index] += amount
            plot.pieces.append(f'<path class="fill {layer.colour}" d="{"".join(shapes)}"/>')
        plot.times(x, span)
        for index, total in enumerate(totals):
            at = layers[0].points[index][0]
            words = [
                f"{layer.name}: {short(layer.points[index][1])}{unit}" for layer in layers if layer.points[index][1]
            ]
            if total:
                plot.hover(x(at), x(at + width_s), f"{clock(at)}\n" + "\n".join(words))
        return plot.svg()

    return legend([(layer.name, layer.colour) for layer in layers]) + both(draw)


def curve(label: str, series: Sequence[Series]) -> str:
    """Draw latency (ms) by percentile; the axis stretches towards 100, where the interesting part is."""
    values = [value for one in series for _, value in one.points if value > 0]
    if not values:
        return ""
    low, high = min(values) / 1.1, max(values) * 1.1
    nines = max(_nines(q) for one in series for q, _ in one.points)

    def draw(width: int) -> str:
        plot = Plot(width, label)
        plot.left = 62
        x, y = plot.x(nines), plot.y(high, low, log=True)
        plot.grid(y, log_ticks(low, high), duration)
        base = plot.height - plot.bottom
        for q, words in (
            (0, "min" if plot.roomy else ""),
            (50, "p50"),
            (90, "p90"),
            (99, "p99"),
            (99.9, "p99.9"),
            (99.99, "p99.99"),
        ):
            if _nines(q) <= nines + 1e-9:
                at = x(_nines(q))
                anchor = "start" if q == 0 else "end" if at > width - plot.right - 12 else "middle"
                plot.pieces.append(f'<path class="grid" d="M{at:.1f} {plot.top}V{base}"/>')
                plot.pieces.append(f'<text x="{at:.1f}" y="{base + 17}" text-anchor="{anchor}">{words}</text>')
        for one in series:
            path = _path([(x(_nines(q)), y(value)) for q, value in one.points], step=False)
            plot.pieces.append(f'<path class="line {one.colour}" d="{path}"/>')
        points = series[0].points
        for (q, _), (after, _) in zip(points, [*points[1:], points[-1]], strict=True):
            said = [f"{one.name}: {duration(value)}" for one in series for at_q, value in one.points if at_q == q]
            plot.hover(x(_nines(q)), x(_nines(after)), f"p{q:g}\n" + "\n".join(said))
        return plot.svg()

    return legend([(one.name, one.colour) for one in series]) + both(draw)


def _nines(q: float) -> float:
    return -math.log10(max(1.0 - q / 100.0, 1e-6))


def heat_class(count: int, peak: int) -> str:
    """Return the colour class of a cell: logarithmic, so that a single slow request is still seen."""
    share = math.log(count) / math.log(peak) if peak > 1 else 0.5
    return f"h{round(share * (HEAT_STEPS - 1))}"


def heat(label: str, heat_map: dict[str, Any], span: float) -> str:
    """Draw a latency heat map over time; the values of its edges are seconds."""
    edges, cells, peak, width_s = heat_map["edges"], heat_map["cells"], heat_map["peak"], heat_map["width"]

    def draw(width: int) -> str:
        plot = Plot(width, label, height=260)
        plot.left = 62
        x, y = plot.x(span), plot.y(edges[-1], edges[0], log=True)
        shapes: dict[str, list[str]] = {}
        for column, counts in enumerate(cells):
            left, right = x(column * width_s), x((column + 1) * width_s)
            for row, count in enumerate(counts):
                if count:
                    top, bottom = y(edges[row + 1]), y(edges[row])
                    shapes.setdefault(heat_class(count, peak), []).append(
                        f"M{left:.1f} {bottom:.1f}V{top:.1f}H{right:.1f}V{bottom:.1f}z"
                    )
            if any(counts):
                rows = [row for row, count in enumerate(counts) if count]
                spread = f"{duration(edges[rows[0]] * 1000.0)} to {duration(edges[rows[-1] + 1] * 1000.0)}"
                plot.hover(left, right, f"{clock(column * width_s)}\n{sum(counts)} requests\n{spread}")
        drawn = [f'<path class="heat {name}" d="{"".join(parts)}"/>' for name, parts in sorted(shapes.items())]
        hovers, plot.pieces = plot.pieces, []
        plot.grid(y, log_ticks(edges[0], edges[-1]), lambda seconds: duration(seconds * 1000.0))
        plot.pieces += drawn
        plot.times(x, span)
        plot.pieces += hovers
        return plot.svg()

    swatches = "".join(f'<i class="h{step}"></i>' for step in range(HEAT_STEPS))
    key = f'<p class="scale">1 request {swatches} {peak} requests in a cell</p>'
    return key + both(draw)


def strip(states: Sequence[tuple[float, str]], span: float) -> str:
    """Draw what state something was in over time, as a bar without text that stretches to its column."""
    runs: list[tuple[float, str]] = []
    for at, state in states:
        if not runs or runs[-1][1] != state:
            runs.append((at if runs else 0.0, state))
    pieces, words = [], []
    for (at, state), (after, _) in zip(runs, [*runs[1:], (span, "")], strict=True):
        left, right = at / span * 1000, min(after / span, 1.0) * 1000
        pieces.append(f'<rect class="{state}" x="{left:.1f}" width="{max(right - left, 1):.1f}" height="14"/>')
        words.append(f"{state} from {clock(at)}")
    shape = 'class="strip" viewBox="0 0 1000 14" preserveAspectRatio="none"'
    label = html.escape(", ".join(words))
    return f'<svg {shape} role="img" aria-label="{label}"><title>{chr(10).join(words)}</title>{"".join(pieces)}</svg>'
