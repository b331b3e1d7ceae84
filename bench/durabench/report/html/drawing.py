"""A chart as a part of a page: an SVG that takes the page's colours, light or dark, and a third of the bytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from durabench.report.charts import style

if TYPE_CHECKING:
    from durabench.report.charts import Chart

_COLOURS = {
    style.INK: "var(--ink)",
    style.FAINT: "var(--faint)",
    style.LINE: "var(--line)",
    style.STRIPE: "var(--stripe)",
    style.PAPER: "var(--paper)",
    **{colour: f"var(--b{number},{colour})" for number, colour in enumerate(style.COLOURS)},
}
_COLOUR = re.compile("|".join(map(re.escape, _COLOURS)))
_DROPPED = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>|<\?xml.*?\?>|<!DOCTYPE.*?>", re.DOTALL)
_ID = re.compile(r'(?<=<g) id="[^"]*"')
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_PATHS = re.compile(r'(?<= d=")[^"]*(?=")|(?<= transform=")[^"]*(?=")|(?<= (?:x|y)=")[\d.-]+(?=")')
_SIZE = re.compile(r'width="([\d.]+)pt" height="([\d.]+)pt"')


def inline(chart: Chart) -> Markup:
    """The chart as an element of a page, with its sentence for who does not see it."""
    text = style.content(chart, "svg").decode()
    text = _ID.sub("", _DROPPED.sub("", text))
    text = _PATHS.sub(lambda found: _NUMBER.sub(_one_decimal, found[0]), text)
    text = _COLOUR.sub(lambda found: _COLOURS[found[0]], text)
    text = re.sub(r">\s+<", "><", re.sub(r"[ \t]*\n[ \t]*", " ", text)).strip()
    said = escape(f"{chart.title}. {chart.sentence}")
    name = escape(chart.name)
    head = f'<svg role="img" aria-labelledby="{name}-said" class="chart"'
    text = _SIZE.sub(
        lambda found: f'width="{float(found[1]) / 0.72:.0f}" height="{float(found[2]) / 0.72:.0f}"', text, 1
    )
    text = text.replace("<svg", head, 1)
    start = text.index(">") + 1
    return Markup(f'{text[:start]}<title id="{name}-said">{said}</title>{text[start:]}')  # noqa: S704


def _one_decimal(found: re.Match[str]) -> str:
    return f"{float(found[0]):.1f}".removesuffix(".0")
