"""The capacity of a device for a target: the requests that fit into its memory, and the speed to expect of them.

The speed comes from the device's roofs and the engine's cost model. The shares of the roofs that a step reaches were
measured, on the devices that the constants name.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.suggesting.candidate import ACCEPTANCE, MOST_TOKENS, DrafterCandidate, Kind
from draftwire_core.suggesting.device_roofs import DeviceRoofs, gpus
from draftwire_core.suggesting.target_facts import TargetFacts

TREE_NODES = EngineLimits().max_tree_nodes
"""KV slots of a request for the nodes of its tree, by default."""
KV_BYTES = 2
"""Bytes of a key's or value's element, by default."""
Q8_KV_BYTES = 1.0625
"""Bytes of one with --kv-dtype q8_0."""
Q8_0, Q4_0 = 8.5, 4.5
"""Bits of a weight in these formats."""
GPU_MEMORY_SHARE = 0.9
"""Default of --gpu-memory-utilization."""
GPU_RESERVE = 2 << 30
"""Bytes for the largest step, CUDA graphs and libraries: 1.8 GiB were in use for them on an H200."""
CPU_RESERVE = 1 << 30
"""Bytes for the process and the largest step."""
GPU_SHARE, GPU_FLOPS_SHARE = 0.80, 0.54
"""Shares of the bandwidth and of the products' roof, of kernels of steps of Llama 3.1 8B's shape on an H200
(benchmarks/results/gpu: 4.46 ms for 15.0 GB; 28 microseconds for each further row)."""
GPU_PASS_SECONDS, GPU_STEP_SECONDS = 0.76e-3, 0.44e-3
"""Time of the host around a pass and around the rest of a step (the same)."""
CPU_SHARE, CPU_ROW = 0.75, 0.12
"""Share of the read bandwidth of a plain step, 0.42 to 0.96, and cost of each further row as a share of a pass, 0 to
0.3: the middle of benchmarks/results/weight_products over five processors, bfloat16, q8_0 and q4_0."""
UNIVERSAL_KV = 190_000_000
"""Bytes of the universal drafter's KV slots."""
_PLAIN_BITS = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The capacity of a device for a target, with what it was asked for."""

    memory: int
    """Bytes of the device that may be in use."""
    weights: int
    """Bytes of the target's weights in memory."""
    drafter: int
    """Bytes of the drafter's weights and KV slots."""
    reserve: int
    """Bytes for everything else."""
    slot: int
    """Bytes of a KV slot."""
    drafter_slot: int
    """Bytes of the drafter's KV slot for the same token."""
    request_slots: int
    """KV slots of a request: its context, and the nodes of its tree."""
    requests: int
    """The requests that were asked for."""
    step_seconds: float
    """Time of a plain step of the requests asked for."""
    plain: float
    """Tokens per second of all requests, decoded plainly."""
    drafted: float | None
    """Tokens per second with the drafter; None if there is none."""
    draft_tokens: int
    """Draft tokens per request and step; 0 if drafting does not pay."""

    @property
    def token(self) -> int:
        """Bytes of a token's KV slots, the drafter's included."""
        return self.slot + self.drafter_slot

    @property
    def left(self) -> int:
        """Bytes left for KV slots."""
        return self.memory - self.weights - self.drafter - self.reserve

    @property
    def fit(self) -> int:
        """The requests that fit."""
        return max(0, self.left // (self.token * self.request_slots))

    @property
    def lacking(self) -> int:
        """Bytes that the requests need beyond what there is; 0 or less if they fit."""
        return self.requests * self.request_slots * self.token - self.left


def capacity_of(
    target: TargetFacts, device: DeviceRoofs, drafter: DrafterCandidate | None, requests: int, context: int
) -> Capacity:
    """Returns what a device can serve of a target.

    drafter: drafts on the same device; None for plain decoding. requests: at once. context: tokens of each, prompt and
    output. Raises ValueError if the files do not say what is needed, or if the target takes no context of this length.
    """
    if not target.kv_values or not target.bytes_per_token:
        raise ValueError(f"--model: the files of {target.source} here do not say how large its layers are; download it")
    if target.context_length and context > target.context_length:
        raise ValueError(f"--context: the target takes at most {target.context_length} tokens, got {context}")
    slot, drafter_slot = target.kv_values * KV_BYTES, 0 if drafter is None else drafter.slot_bytes
    memory = round(device.memory * (GPU_MEMORY_SHARE if device.on_gpu else 1.0))
    reserve = GPU_RESERVE if device.on_gpu else CPU_RESERVE
    weights = round(target.weight_bytes * min(1.0, _PLAIN_BITS / target.value_bits))
    drafts = 0 if drafter is None else drafter.memory_bytes + (UNIVERSAL_KV if drafter.kind is Kind.UNIVERSAL else 0)
    cost = step_cost(target, device, slot, context, requests * (1 + MOST_TOKENS))
    step = cost.seconds(requests, requests)
    drafted, draft_tokens = None, 0
    if drafter is not None:
        drafting = drafting_seconds(drafter.read_bytes, device, requests)
        drafted, draft_tokens = drafted_speed(cost, drafting, ACCEPTANCE[drafter.kind], requests)
    return Capacity(
        memory=memory,
        weights=weights,
        drafter=drafts,
        reserve=reserve,
        slot=slot,
        drafter_slot=drafter_slot,
        request_slots=context + TREE_NODES,
        requests=requests,
        step_seconds=step,
        plain=requests / step,
        drafted=drafted,
        draft_tokens=draft_tokens,
    )


def remedies(capacity: Capacity, target: TargetFacts, device: DeviceRoofs) -> list[str]:
    """Returns what to change so that the requests fit, each of which suffices; empty if they fit."""
    found: list[str] = []
    lacking = capacity.lacking
    if lacking <= 0:
        return found
    if capacity.fit:
        found.append(f"at most {capacity.fit} requests at once")
    shorter = capacity.left // (capacity.token * capacity.requests) - TREE_NODES
    if shorter > 0:
        found.append(f"a context of at most {shorter} tokens")
    tokens = capacity.requests * capacity.request_slots
    if lacking <= tokens * capacity.slot * (1 - Q8_KV_BYTES / KV_BYTES):
        found.append("keys and values of 8 bits (--kv-dtype q8_0)")
    if lacking <= capacity.drafter + tokens * capacity.drafter_slot:
        found.append("no drafter with a model")
    for name, bits in (("q8_0", Q8_0), ("q4_0", Q4_0)):
        saved = target.weight_bytes * (_PLAIN_BITS - bits) / target.value_bits
        if target.value_bits >= _PLAIN_BITS and lacking <= saved:  # weights of fewer bits stay as they are
            found.append(f"weights of fewer bits (--weights {name})")
            break
    larger = [other.name for other in gpus() if lacking <= (other.memory - device.memory) * GPU_MEMORY_SHARE]
    if device.on_gpu and larger:
        found.append(f"a GPU with more memory ({', '.join(larger)})")
    return found or ["a smaller model"]


def step_cost(target: TargetFacts, device: DeviceRoofs, slot: int, context: int, most_rows: int) -> StepCost:
    """Returns the cost model of a target's steps.

    slot: bytes of a KV slot. context: tokens of each sequence. most_rows: rows of the largest step.
    """
    share = GPU_SHARE if device.on_gpu else CPU_SHARE
    speed = device.bandwidth * share
    rows = [1 << power for power in range(most_rows.bit_length() + 1)]
    seconds = [_reading(target, device, count) / speed for count in rows]
    if device.on_gpu:
        operations = 2 * 8 * target.bytes_per_token / target.value_bits  # a product and a sum for each weight
        further = operations / (device.flops * GPU_FLOPS_SHARE)
        seconds = [each + GPU_PASS_SECONDS + GPU_STEP_SECONDS for each in seconds]
    else:
        further = seconds[0] * CPU_ROW
    context_seconds = slot * context / speed  # of the first sequence; the model adds the others'
    points = [each + further * (count - 1) + context_seconds for count, each in zip(rows, seconds, strict=True)]
    return StepCost(rows, points, context=context, seconds_per_read=slot / speed)


def drafting_seconds(read_bytes: int, device: DeviceRoofs, sequences: int) -> float:
    """Returns the time of a drafter's pass, which adds a token to the tree of each sequence.

    read_bytes: bytes of weights that a draft token reads.
    """
    if device.on_gpu:
        rows = sequences * read_bytes / (device.flops * GPU_FLOPS_SHARE)
        return GPU_PASS_SECONDS + read_bytes / (device.bandwidth * GPU_SHARE) + rows
    return read_bytes / (device.bandwidth * CPU_SHARE) * (1 + CPU_ROW * (sequences - 1))


def drafted_speed(cost: StepCost, drafting: float, acceptance: float, sequences: int) -> tuple[float, int]:
    """Returns the tokens per second of so many sequences with drafts of the best length, and that length; 0 if plain
    decoding is the fastest.

    Drafter and target take turns. cost: of the target's steps. drafting: seconds of a pass of the drafter. acceptance:
    chance that a draft token is right given that those before it are.
    """
    best, tokens, chance = (sequences / cost.seconds(sequences, sequences), 0), 1.0, 1.0
    for length in range(1, MOST_TOKENS + 1):
        chance *= acceptance
        tokens += chance
        seconds = cost.seconds(sequences * (1 + length), sequences) + length * drafting
        best = max(best, (sequences * tokens / seconds, length))
    return best


def _reading(target: TargetFacts, device: DeviceRoofs, rows: int) -> float:
    """The bytes of weights that a pass reads, at the speed of bfloat16 on the device."""
    # Each row chooses its experts; those that none has chosen are not read.
    unread = (target.pass_bytes - target.bytes_per_token) * (1 - target.expert_share) ** (rows - 1)
    size = target.pass_bytes - unread
    # GPUs unpack weights of few bits as they multiply, which takes about the time that it saves.
    narrow = target.value_bits < _PLAIN_BITS and not device.on_gpu
    return size if narrow else size * _PLAIN_BITS / target.value_bits
