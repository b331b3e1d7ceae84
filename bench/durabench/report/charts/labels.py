"""Labels that stand beside what they name and on nothing else: in columns, or wherever there is room."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    Point = tuple[float, float, str]


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Positions as near to the ``wanted`` ones as being ``apart`` allows, in the same order, within low and high.

    Where there is no room for all they are spread evenly over it.
    """
    if len(wanted) < 2:
        return [min(max(value, low), high) for value in wanted]
    apart = min(apart, (high - low) / (len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda at: (wanted[at], at))
    # Groups of labels that touch are centred on the mean of what they want, and merged where that makes them overlap.
    groups: list[tuple[float, list[int]]] = []
    for at in order:
        mean, members = wanted[at], [at]
        while True:
            half = apart * (len(members) - 1) / 2
            mean = min(max(mean, low + half), high - half)
            if not groups:
                break
            before, others = groups[-1]
            if before + apart * (len(others) - 1) / 2 + apart <= mean - half + 1e-9:
                break
            groups.pop()
            members = [*others, *members]
            mean = sum(wanted[one] for one in members) / len(members)
        groups.append((mean, members))
    found = [0.0] * len(wanted)
    for mean, members in groups:
        for place, at in enumerate(members):
            found[at] = mean + apart * (place - (len(members) - 1) / 2)
    return found


def column(axes: Axes, ends: Sequence[Point], size: float, colour: str, gap: float = 0.04) -> list[Text]:
    """Name curves at the right of the axes: a column of labels, each led to (x, y) of its curve by a thin line.

    ``ends`` are in data coordinates. The limits of the axes are fixed by this: a leader must not move them.
    """
    if not ends:
        return []
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    height = axes.get_window_extent().height
    apart = size * 1.35 / 72 * axes.get_figure(root=True).dpi / height  # type: ignore[union-attr]
    to_axes = axes.transData + axes.transAxes.inverted()
    points = [to_axes.transform((x, y)) for x, y, _ in ends]
    made, xs, ys = [], [], []
    for (x, y), at, (_, _, label) in zip(points, spread([p[1] for p in points], apart, 0.0, 1.0), ends, strict=True):
        xs += [x, 1 + gap * 0.75, nan]
        ys += [y, at, nan]
        made.append(axes.text(1 + gap, at, label, transform=axes.transAxes, size=size, va="center", clip_on=False))
    axes.plot(xs, ys, transform=axes.transAxes, color=colour, lw=0.4, alpha=0.7, clip_on=False, zorder=1)
    return made


_AROUND = (
    *((1, 0.0), (1, 1.0), (1, -1.0), (-1, 0.0), (-1, 1.0), (-1, -1.0), (1, 2.0), (1, -2.0), (-1, 2.0), (-1, -2.0)),
    *((sign, at) for at in (3.0, -3.0, 4.0, -4.0, 5.0, -5.0, 6.0, -6.0, 8.0, -8.0, 10.0, -10.0) for sign in (1, -1)),
)
"""Where a label is tried: right or left of its point, so many line heights above it."""


def beside(axes: Axes, points: Sequence[Point], size: float, colour: str) -> Sequence[Text]:
    """Name points, each at the nearest place where its label touches no other label and no other point."""
    from matplotlib.transforms import Bbox

    renderer = axes.get_figure(root=True).canvas.get_renderer()  # type: ignore[union-attr]
    room = axes.get_window_extent()
    pixels = [axes.transData.transform((x, y)) for x, y, _ in points]
    taken: list[Bbox] = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in pixels]
    made = []
    for number in sorted(range(len(points)), key=lambda at: (-pixels[at][1], pixels[at][0])):
        (x, y), (data_x, data_y, label) = pixels[number], points[number]
        text = axes.annotate(label, (data_x, data_y), size=size, va="center", annotation_clip=False)
        extent = text.get_window_extent(renderer)
        best: tuple[float, int, float, Bbox] | None = None
        for sign, lines in _AROUND:
            left = x + 11 if sign > 0 else x - 11 - extent.width
            box = Bbox.from_bounds(left, y + lines * extent.height - extent.height / 2, extent.width, extent.height)
            outside = max(0.0, room.x0 - box.x0) + max(0.0, room.y0 - box.y0) + max(0.0, box.y1 - room.y1)
            hits = sum(box.overlaps(other) for at, other in enumerate(taken) if at != number)
            cost = 1000 * hits + 100 * (outside > 0) + abs(lines)
            if best is None or cost < best[0]:
                best = (cost, sign, lines, box)
        assert best is not None
        _, sign, lines, box = best
        taken.append(box)
        inverse = axes.transData.inverted()
        text.set(ha="left" if sign > 0 else "right")
        text.set_position(tuple(inverse.transform((x + 11 * sign, y + lines * extent.height))))
        if abs(lines) > 1:
            edge = inverse.transform((x + 10 * sign, y + lines * extent.height))
            axes.plot([data_x, edge[0]], [data_y, edge[1]], color=colour, lw=0.4, zorder=1)
        made.append(text)
    return made


@dataclass(frozen=True)
class Defects:
    """Pairs of texts of a figure that lie on each other by more than a pixel, and texts that are cut off."""

    overlapping: tuple[tuple[str, str], ...]
    outside: tuple[str, ...]


def defects(figure: Figure) -> Defects:
    """What is wrong with the texts of a figure."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = [(text.get_text(), text.get_window_extent(renderer).padded(-1.0)) for text in texts(figure)]
    edge = figure.bbox
    return Defects(
        tuple(
            (one, other)
            for number, (one, box) in enumerate(boxes)
            for other, another in boxes[number + 1 :]
            if box.overlaps(another)
        ),
        tuple(
            text for text, box in boxes if box.x0 < edge.x0 or box.y0 < edge.y0 or box.x1 > edge.x1 or box.y1 > edge.y1
        ),
    )


def texts(figure: Figure) -> Iterator[Text]:
    """Every text that is drawn: matplotlib keeps labels of ticks outside the axes, too."""
    yield from filter(_shown, figure.texts)
    for axes in figure.axes:
        yield from filter(_shown, axes.texts)
        if not axes.axison:
            continue
        titles = (axes.title, axes._left_title, axes._right_title)  # type: ignore[attr-defined]  # noqa: SLF001
        yield from filter(_shown, (*titles, axes.xaxis.label, axes.yaxis.label))
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if low <= tick.get_loc() <= high:
                    yield from filter(_shown, (tick.label1, tick.label2))


def _shown(text: Text) -> bool:
    return bool(text.get_visible() and text.get_text().strip())
