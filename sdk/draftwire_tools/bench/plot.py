"""A plot of a comparison."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from draftwire._extras import how_to_install
from draftwire.cli.failure import Failure
from draftwire_tools.bench.figures import Figures

_INCHES = (2.0, 4.5)
"""Width per setting, and height."""


def check_plotting() -> None:
    """Checks that plots can be drawn here.

    Raises:
        Failure: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise Failure(f"--plot requires matplotlib: {how_to_install('bench')}, or leave the option out")


def plot(figures: Sequence[Figures], path: Path) -> None:
    """Draws the speed-up of each method for each setting: the median, and the range over the runs."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys(each.setting for each in figures))
    names = list(dict.fromkeys(each.method.name for each in figures if not each.method.is_plain))
    picture = Figure(figsize=(2.0 + _INCHES[0] * len(settings), _INCHES[1]), layout="constrained")
    axes = picture.subplots()
    axes.set_prop_cycle(color=[colormaps["tab20"](index) for index in range(20)])
    width = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        ours = [each for each in figures if each.method.name == name]
        places = [settings.index(each.setting) + (index - (len(names) - 1) / 2) * width for each in ours]
        medians = [each.speed_up.median for each in ours]
        below = [each.speed_up.median - each.speed_up.low for each in ours]
        above = [each.speed_up.high - each.speed_up.median for each in ours]
        axes.bar(places, medians, 0.9 * width, yerr=[below, above], capsize=3, label=name)
    axes.axhline(1.0, color="black", linewidth=1, linestyle="--", label="plain decoding")
    axes.set_xticks(range(len(settings)), [f"{setting.task}\nT = {setting.temperature:g}" for setting in settings])
    axes.set_ylabel("speed-up: median, lowest and highest run")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    picture.savefig(path, format="png", dpi=150)
