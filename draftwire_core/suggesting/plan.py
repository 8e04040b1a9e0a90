"""``draftwire plan``: whether a model and so many requests fit a device, and how fast it decodes."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from draftwire.cli.failure import Failure, check_installed
from draftwire.cli.options import Json
from draftwire.cli.results import print_table
from draftwire_tools.progress import status

if TYPE_CHECKING:
    from draftwire_core.suggesting.candidate import DrafterCandidate
    from draftwire_core.suggesting.capacity import Capacity
    from draftwire_core.suggesting.device_roofs import DeviceRoofs
    from draftwire_core.suggesting.target_facts import TargetFacts

_NEEDED = ("numpy", "huggingface_hub", "gguf")


def plan(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="The target: a directory, a GGUF file or a hub id; it is not loaded.")
    ],
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="A GPU, such as H100; a wrong one lists all.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="This machine's CPU, whose memory bandwidth is measured.")] = False,
    requests: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 32,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each request, prompt and output.")] = 4096,
    bandwidth: Annotated[
        float | None, typer.Option(min=0.1, metavar="GB/S", help="Memory bandwidth, in place of the known one.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0.1, metavar="GIB", help="Memory of the device, in place of the known one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what fits a device and how fast it decodes, by the model's files. Exit status 1 if the requests do not."""
    if cpu == (gpu is not None):
        raise ValueError("--gpu, --cpu: give exactly one of them")
    check_installed("draftwire plan reads models here and", _NEEDED)
    # Imported when the command runs, because the help of all commands works without these packages.
    from draftwire_core.engine.errors import ModelLoadError
    from draftwire_core.suggesting.capacity import capacity_of, remedies
    from draftwire_core.suggesting.hub_target import peeked
    from draftwire_core.suggesting.suggestion import suggest

    with status(Console(stderr=True, highlight=False), "planning") as shown:
        if cpu and bandwidth is None:
            shown("measuring the memory bandwidth", 0.0)
        device = _device(gpu, bandwidth, memory)
        shown(f"reading the files of {model}", 0.5)
        try:
            target = peeked(model)
        except ModelLoadError as error:
            raise Failure(str(error)) from error
    drafter = next(iter(suggest(target, on_gpu=device.on_gpu).usable), None)
    found = capacity_of(target, device, drafter, requests, context)
    changes = remedies(found, target, device)
    if as_json:
        print(json.dumps(_json(found, device, drafter, changes)))
    else:
        _show(found, target, device, drafter, context)
    if changes:
        raise Failure(
            f"no: {requests} requests of {context} tokens need {_size(found.lacking)} more than there is; any of these "
            f"suffices: {'; '.join(changes)}"
        )


def _device(gpu: str | None, bandwidth: float | None, memory: float | None) -> DeviceRoofs:
    from draftwire_core.suggesting import device_roofs

    speed, size = bandwidth and bandwidth * 1e9, memory and memory * 2**30
    if gpu is None:
        return device_roofs.cpu(speed, size)
    known = device_roofs.gpu(gpu)
    if speed is not None:
        known = dataclasses.replace(known, bandwidth=speed, bandwidth_from="given")
    return known if size is None else dataclasses.replace(known, memory=int(size))


def _show(
    found: Capacity, target: TargetFacts, device: DeviceRoofs, drafter: DrafterCandidate | None, context: int
) -> None:
    """Prints the plan, and what it assumes."""
    from draftwire_core.engine.engine.engine_limits import EngineLimits
    from draftwire_core.suggesting.capacity import TREE_NODES

    requests = found.requests
    slots = f"--kv-slots {requests * found.request_slots}"
    if requests > EngineLimits().max_sequences:
        slots += f" --max-sequences {requests}"
    rows = [
        ("memory", _size(found.memory), f"that may be in use of {device.name} ({device.memory / 2**30:.0f} GiB)"),
        ("weights", _size(found.weights), f"{target.architecture or 'target'}, {target.layers} layers"),
        ("drafter", _size(found.drafter), "none fits" if drafter is None else drafter.name),
        ("reserve", _size(found.reserve), "for the largest step, graphs and libraries"),
        ("a token", _size(found.token), "KV slots of target and drafter, in 16 bits"),
        ("a request", _size(found.token * found.request_slots), f"its tokens, and {TREE_NODES} of a tree"),
        ("fit", f"{found.fit} requests", f"of {context} tokens; asked for {requests}: {slots}"),
        ("plain", f"{found.plain:.0f} tokens/s", f"{found.plain / requests:.1f} for each request"),
    ]
    if found.drafted is not None:
        pays = f"{found.draft_tokens} draft tokens a step" if found.draft_tokens else "drafts do not pay at this number"
        rows.append(("drafted", f"{found.drafted:.0f} tokens/s", pays))
    print_table(("WHAT", "AMOUNT", "NOTE"), rows, "<><")
    for line in _assumptions(device, drafter):
        print(line)
    if found.lacking <= 0:
        print(f"yes: {requests} requests of {context} tokens fit, with {_size(-found.lacking)} to spare")


def _assumptions(device: DeviceRoofs, drafter: DrafterCandidate | None) -> list[str]:
    from draftwire_core.suggesting import capacity
    from draftwire_core.suggesting.candidate import ACCEPTANCE

    bandwidth = f"{device.bandwidth / 1e9:.0f} GB/s ({device.bandwidth_from})"
    if device.on_gpu:
        speed = (
            f"reckoned, not measured: a step reads weights and KV slots at {capacity.GPU_SHARE:.2f} of {bandwidth}; "
            f"rows reach {capacity.GPU_FLOPS_SHARE:.2f} of {device.flops / 1e12:.0f} TFLOPS; the host takes "
            f"{1e3 * (capacity.GPU_PASS_SECONDS + capacity.GPU_STEP_SECONDS):.1f} ms: shares of an H200 "
            "(benchmarks/results/gpu)"
        )
    else:
        speed = (
            f"reckoned, not measured: a step reads weights and KV slots at {capacity.CPU_SHARE:.2f} of {bandwidth}, "
            f"and each further row costs {capacity.CPU_ROW:.2f} of it: the middle of "
            "benchmarks/results/weight_products; what Python takes around a step, which small models feel, is left out"
        )
    lines = [speed]
    if drafter is not None:
        share = f"{ACCEPTANCE[drafter.kind]:.0%}"
        lines.append(f"drafts: {share} of draft tokens are right, assumed by the kind; drafter and target take turns")
    return lines


def _json(found: Capacity, device: DeviceRoofs, drafter: DrafterCandidate | None, changes: list[str]) -> dict[str, Any]:
    names = ("token", "left", "fit", "lacking")
    return {
        "fits": not changes,
        **dataclasses.asdict(found),
        **{name: getattr(found, name) for name in names},
        "device": dataclasses.asdict(device),
        "drafter_name": None if drafter is None else drafter.name,
        "remedies": changes,
        "assumptions": _assumptions(device, drafter),
    }


def _size(size: int) -> str:
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:.1f} {unit}"
    return f"{size} B"
