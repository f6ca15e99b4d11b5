"""Draw the ratios as bars. Run by the peer's Python: `python chart.py FIGURES.json CHART.png`."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont  # type: ignore[import-not-found]

_WIDTH, _ROW, _TOP, _BOTTOM = 1200, 30, 78, 30
_NAMES, _BARS = 20, 470
_LONGEST_BAR = _WIDTH - _BARS - 180
_INK, _FAINT, _BETTER, _WORSE = "#222222", "#bbbbbb", "#2f7d4f", "#c2571a"


def draw(figures: list[dict[str, Any]], chart: Path) -> None:
    """Bars from the line of 1× on a logarithmic scale: to the right ours is better, to the left the peer."""
    figures = [figure for figure in figures if figure["ratio"]]
    image = Image.new("RGB", (_WIDTH, _TOP + _ROW * len(figures) + _BOTTOM), "white")
    pen = ImageDraw.Draw(image)
    title, text = ImageFont.load_default(20), ImageFont.load_default(14)
    pen.text((_NAMES, 14), "pyoco-fleet beside pyoco-server 0.5.1: how many times better", _INK, title)
    pen.text((_NAMES, 42), "ratio, then ours / peer; logarithmic", _INK, text)

    logs = [math.log10(figure["ratio"]) for figure in figures]
    low, high = math.floor(min([0.0, *logs])), math.ceil(max([0.1, *logs]))
    per_decade = _LONGEST_BAR / (high - low)

    def x_of(log: float) -> float:
        return _BARS + (log - low) * per_decade

    foot = _TOP + _ROW * len(figures)
    for decade in range(low, high + 1):
        x = x_of(decade)
        pen.line((x, _TOP - 4, x, foot), _INK if decade == 0 else _FAINT)
        pen.text((x, foot + 6), f"{10**decade:g}x", _INK, text, anchor="ma")
    for row, (figure, log) in enumerate(zip(figures, logs, strict=True)):
        top = _TOP + row * _ROW
        pen.text((_NAMES, top + 6), f"{figure['name']} ({figure['unit']})", _INK, text)
        left, right = sorted((x_of(0), x_of(log)))
        pen.rectangle((left, top + 5, max(right, left + 1), top + _ROW - 7), _BETTER if log >= 0 else _WORSE)
        label = f"{_short(figure['ratio'])}x   {_short(figure['ours'])} / {_short(figure['peer'])}"
        pen.text((right + 6, top + 6), label, _INK, text)
    image.save(chart)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
