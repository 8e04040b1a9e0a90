"""``draftwire calibrate``: measures that choose a setting. They run a model in this process."""

from __future__ import annotations

import dataclasses
import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from draftwire._extras import how_to_install
from draftwire.cli.failure import Failure
from draftwire.cli.options import Json
from draftwire.cli.results import print_table
from draftwire_core.training.cli.options import device_of, show_downloads
from draftwire_tools.progress import status
from draftwire_tools.prompt_file import read_prompt_file

if TYPE_CHECKING:
    from draftwire_core.engine.loading.early_exit_calibration import EarlyExitCalibration

calibrate = typer.Typer(help="Measure which settings fit a model on this machine.", no_args_is_help=True)

_SLOTS = 4096
"""KV slots, enough for a few prompts at a time."""


class _Dtype(enum.Enum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    auto = "auto"


@calibrate.callback()
def _calibrate() -> None:
    """Measure which settings fit a model on this machine."""


@calibrate.command("early-exit")
def early_exit(
    model: Annotated[str, typer.Option(help="Directory or hub id of the target model.")],
    prompts: Annotated[
        Path,
        typer.Option(help='Texts to continue: one per line, or JSON lines with "text" if the name ends in .jsonl.'),
    ],
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate after each text.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature of the requests.")] = 0.0,
    dtype: Annotated[_Dtype, typer.Option(help="Weight type, as for the verifier.")] = _Dtype.auto,
    device: Annotated[
        str, typer.Option(help="Device the model runs on: auto (a GPU if torch can use one), cpu, cuda or cuda:N.")
    ] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of a forward pass.")] = None,
    as_json: Json = False,
) -> None:
    """Find the best number of layers for local:early_exit, if it pays at all."""
    texts = [entry.text for entry in read_prompt_file(prompts, "--prompts", by_line=True)]
    found = _measure(model, texts, tokens, temperature, dtype.value, device, threads)
    best = found.best
    if as_json:
        print(json.dumps(dataclasses.asdict(found) | {"best_layers": best.layers if best else None}))
        return
    print(f"{found.tokens} tokens, temperature {temperature:g}; a step takes {1000 * found.step_seconds:.2f} ms")
    rows = [
        (
            str(each.layers),
            f"{each.agreement:.0%}",
            f"{1000 * each.seconds:.2f}",
            str(each.draft_tokens),
            f"{each.speedup:.2f}",
        )
        for each in found.exits
    ]
    print_table(("LAYERS", "AGREEMENT", "MS/ROUND", "DRAFTED", "SPEED-UP"), rows, ">>>>>")
    print(f"best: local:early_exit?layers={best.layers}" if best else "best: none; plain decoding is faster")


def _measure(
    model: str, texts: list[str], tokens: int, temperature: float, dtype: str, device: str, threads: int | None
) -> EarlyExitCalibration:
    # Imported when the command runs, because all other commands work without the serving libraries.
    try:
        from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
        from draftwire_core.engine.device.host import set_cpu_threads
        from draftwire_core.engine.loading.early_exit_calibration import calibrate_early_exit
        from draftwire_core.engine.model.packed_model import PackedModel
        from draftwire_core.engine.text.tokenizer import Tokenizer
    except ModuleNotFoundError as error:
        raise Failure(
            f"calibration runs a model in this process and needs the serving libraries; {error.name} is "
            f"missing: {how_to_install('serve')}"
        ) from error
    console = Console(stderr=True, highlight=False, markup=False)
    show_downloads(lambda line: console.print(line, soft_wrap=True))
    device = device_of(device, lambda line: console.print(line, soft_wrap=True))
    if threads is not None:
        set_cpu_threads(threads)
    console.print(f"loading {model}", soft_wrap=True)
    try:
        checkpoint = Checkpoint.find(model)
        tokenizer = Tokenizer.load(checkpoint)
        loaded = PackedModel.load(checkpoint, slots=_SLOTS, dtype=dtype, device=device)
    except ModelLoadError as error:
        raise Failure(str(error)) from error
    with status(console, "calibrating") as shown:
        return calibrate_early_exit(loaded, [tokenizer.encode(text) for text in texts], tokens, temperature, shown)
