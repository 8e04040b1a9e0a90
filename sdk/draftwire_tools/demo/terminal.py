"""The demo on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwire._types.generation import Chunk
from draftwire_tools.demo.story import DemoReport
from draftwire_tools.loading import bars

OWN_STYLE = "default"
EVENT_STYLE = "black on yellow"


class Terminal:
    """Draws the tokens as they arrive, in the colours of their sources."""

    def __init__(self, console: Console, styles: dict[str, str]) -> None:
        """Draws on a console, in a style for each drafter."""
        self._console = console
        self._styles = styles

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Draws a bar that is full when the context ends."""
        with bars(self._console) as drawn:
            task = drawn.add_task(text, total=None)
            yield
            drawn.update(task, total=1, completed=1)

    @contextmanager
    def plain(self, tokens: int) -> Iterator[Callable[[int], None]]:
        """Draws a bar while the request without drafters runs."""
        with bars(self._console) as drawn:
            task = drawn.add_task("decoding plainly, for comparison", total=tokens)
            yield lambda count: drawn.advance(task, count)

    def begin(self, prompt: str) -> None:
        """Draws the legend and the prompt."""
        legend = Text.assemble("accepted draft tokens of ")
        for index, (name, style) in enumerate(self._styles.items()):
            legend.append(" and " if index else "").append(name, style)
        legend.append(", and the target's own tokens")
        self._console.print()
        self._console.print(legend)
        self._console.print()
        self._write(prompt, "dim")

    def chunk(self, chunk: Chunk) -> None:
        """Draws the tokens of a chunk."""
        for text, source in zip(chunk.token_texts, chunk.sources, strict=True):
            self._write(text, OWN_STYLE if source is None else self._styles.get(source, "magenta"))

    def event(self, text: str) -> None:
        """Draws a mark in the text; where the text goes to a file or a pipe, on stderr, so that it stays whole."""
        if self._console.is_terminal:
            self._write(f" {text} ", EVENT_STYLE)
        else:
            print(f"draftwire demo: {text}", file=sys.stderr, flush=True)

    def report(self, report: DemoReport) -> None:
        """Draws the table at the end."""
        speculation = report.drafted.speculation
        tokens = len(report.drafted.token_ids)
        table = Table(show_header=False, title_justify="left")
        table.add_column()
        table.add_column(justify="right")
        table.add_row("tokens", str(tokens))
        table.add_row("steps of the target", str(speculation.steps))
        table.add_row("acceptance rate", f"{speculation.acceptance_rate:.0%}")
        for share in speculation.drafters:
            name = Text("  ").append(share.name, self._styles.get(share.name, ""))
            table.add_row(name, f"{share.acceptance_rate:.0%} of {share.draft_tokens}")
        table.add_row("acceptance length", f"{speculation.acceptance_length:.2f} tokens per step")
        table.add_row("time, plain decoding", _time(report.plain_seconds, tokens))
        table.add_row("time, with drafters", _time(report.seconds, tokens))
        table.add_row("speed-up", f"{report.speed_up:.2f}x")
        table.add_row("swaps, kills", f"{report.swaps}, {report.kills}")
        same = Text("yes", "bold green") if report.identical else Text("no", "bold red")
        table.add_row("identical to plain decoding", same)
        self._console.print()
        self._console.print()
        self._console.print(table)

    def _write(self, text: str, style: str) -> None:
        self._console.out(text, style=style, end="", highlight=False)


def _time(seconds: float, tokens: int) -> str:
    rate = f", {tokens / seconds:.0f} tokens/s" if seconds else ""
    return f"{seconds:.2f} s{rate}"
