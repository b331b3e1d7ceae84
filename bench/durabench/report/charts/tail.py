"""The tail of a put: its median beside its rare slow ones, as far as the samples reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durabench.report.charts import labels, style
from durabench.report.layout import number
from durabench.statistics import quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from durabench.report.charts.material import Material, Place

NAME, TITLE = "tail", "How slow the slow puts are"
MEASURED = (
    "Put latency without any fault, one put at a time, nothing beside it; a quantile is drawn only from as many "
    "samples as an interval for it takes (p95 from 72, p99 from 368, p99.9 from 3,688)."
)
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_NAMES = ("p50", "p90", "p95", "p99", "p99.9")
_PANEL, _LEFT = 2.9, 0.75


def chart(material: Material) -> style.Chart:
    """A panel for metadata, one for data; a curve per setting."""
    tails = {key: quantiles(samples) for key, samples in material.latencies_ns.items()}
    tails = {key: tail for key, tail in tails.items() if tail}
    if not tails:
        return style.nothing(NAME, TITLE, _why(material), MEASURED)
    namespaces = sorted({key[3] for key in tails}, key=lambda name: name != "metadata")
    most = max(sum(key[3] == namespace for key in tails) for namespace in namespaces)
    named = 0.45 + style.room_for(_name(key, several=len(material.hosts) > 1) for key in tails)
    width, height = (_LEFT + _PANEL + named) * len(namespaces), max(3.4, 0.155 * most + 1.5)
    made = style.figure(width, height)
    style.heading(made, TITLE)
    looks = style.looks(material.backends)
    for place, namespace in enumerate(namespaces):
        left = _LEFT + (_LEFT + _PANEL + named) * place
        axes = made.add_axes((left / width, 0.55 / height, _PANEL / width, (height - 1.3) / height))
        mine = {key: tail for key, tail in tails.items() if key[3] == namespace}
        _panel(axes, namespace, mine, looks, several=len(material.hosts) > 1)
    return style.Chart(NAME, TITLE, _sentence(tails), MEASURED, made)


def _why(material: Material) -> str:
    why = material.document["machine"].get("latency")
    return f"latencies mean nothing on this disk: {why}" if why else "no put was timed without a fault"


def quantiles(samples: Sequence[int]) -> list[float]:
    """Quantiles in ms, as many as the samples allow."""
    found = []
    for q in QUANTILES:
        value = quantile(samples, q) if len(samples) else None
        if value is None:
            break
        found.append(value / 1e6)
    return found


def _panel(
    axes: Axes, title: str, tails: Mapping[Place, list[float]], looks: Mapping[str, style.Look], *, several: bool
) -> None:
    low = min(tail[0] for tail in tails.values())
    high = max(tail[-1] for tail in tails.values())
    reach = max(2, *map(len, tails.values()))
    axes.set(yscale="log", xlim=(-0.2, reach - 0.8), ylim=(low / 1.6, high * 1.6), title=f"{title}, ms")
    axes.set_xticks(range(reach), _NAMES[:reach])
    style.plain_log(axes.yaxis)
    ends = []
    settings: dict[str, list[str]] = {}
    for key, tail in tails.items():
        _, backend, setting, _ = key
        mine = settings.setdefault(backend, [])
        mine.append(setting)
        look, dash = looks[backend], style.DASHES[(len(mine) - 1) % len(style.DASHES)]
        axes.plot(range(len(tail)), tail, color=look.colour, ls=dash, lw=1.2, marker=look.marker, markersize=3.5)
        ends.append((len(tail) - 1, tail[-1], f"{_name(key, several=several)}  {number(tail[-1])}"))
    labels.column(axes, ends, 6.5, style.FAINT, gap=0.12)


def _name(place: Place, *, several: bool) -> str:
    host, backend, setting, _ = place
    return f"{backend}:{setting}" + (f" @{host}" if several else "")


def _sentence(tails: Mapping[Place, list[float]]) -> str:
    long = {key: tail for key, tail in tails.items() if len(tail) > 3}
    if not long:
        return "No setting has enough puts for a p99 (368): only what is below it is drawn."
    worst = max(long, key=lambda key: long[key][3] / long[key][0])
    best = min(long, key=lambda key: long[key][3])
    said = [
        f"{key[1]}:{key[2]} ({key[3]}: p50 {number(long[key][0])} ms, p99 {number(long[key][3])} ms)"
        for key in (worst, best)
    ]
    return f"The longest tail for its median has {said[0]}; the lowest p99 has {said[1]}."
