"""Plots of a verifier's figures over its load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from draftwire_tools.spread import Spread

PANELS = (
    ("goodput", "tokens/s of requests in time"),
    ("refused", "share of requests refused"),
    ("first_token_p99", "first token, 99th percentile, s"),
    ("gap_p95", "between tokens, 95th percentile, s"),
)
_COLOURS = ("#7a869a", "#1f4e8c", "#d9822b", "#3c8d5a")


def plot(
    spreads: Mapping[tuple[float, str], Mapping[str, Spread]],
    loads: Sequence[float],
    kinds: Sequence[str],
    title: str,
    path: Path,
) -> None:
    """Plots each figure over the load, one line per kind: medians, and the range of the runs.

    spreads: by load and kind, the figures by name; figures that a run lacks are left out.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained", sharex=True)
    for axes, (name, label) in zip(panels.flat, PANELS, strict=True):
        for kind, colour in zip(kinds, _COLOURS, strict=False):
            points = [(load, spreads[load, kind][name]) for load in loads if name in spreads[load, kind]]
            if not points:
                continue
            xs = [load for load, _ in points]
            axes.plot(xs, [spread.median for _, spread in points], color=colour, marker="o", label=kind)
            axes.fill_between(
                xs, [spread.low for _, spread in points], [spread.high for _, spread in points], color=colour, alpha=0.2
            )
        axes.axvline(1.0, color="#c9d4e3", zorder=0)
        axes.set(ylabel=label)
        axes.set_ylim(bottom=0)
    for axes in panels[-1]:
        axes.set(xlabel="requests asked for, over what the verifier can serve plainly")
    panels[0][0].legend(loc="lower right")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
