"""Runs draftwire's speculator under the parts of vLLM's runner V2 that run on CPUs, and prints JSON for each event.

    python v2_child.py '{"model": DIR, "prompts": [[id, ...], ...], "max_tokens": N, "draft_tokens": K}'

Runner V2 itself needs a GPU. Here its own classes and kernels are used without it: the plugins are loaded, the
configuration chooses the runner, `init_speculator` makes the speculator, and steps run with RequestState, InputBatch
and the kernels that lay out draft tokens, verify them and add what was sampled, interpreted by Triton. What the target
computes is known beforehand: its greedy text.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import torch

_PLACES = 4


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    order = json.loads(sys.argv[1])

    def say(**message: Any) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    be_a_cpu()
    from vllm import __version__ as version
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from vllm.config import (
        CacheConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
        set_current_vllm_config,
    )
    from vllm.distributed import parallel_state
    from vllm.v1.worker.gpu import model_runner, spec_decode
    from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator
    from vllm.v1.worker.gpu.states import RequestState

    from draftwire_core.adapters.vllm import registration, vllm_version
    from draftwire_core.adapters.vllm.remote_speculator import RemoteSpeculator

    first = spec_decode.init_speculator
    registration.register()  # once more
    assert spec_decode.init_speculator is model_runner.init_speculator is first

    def configuration(**speculative: Any) -> Any:
        target = ModelConfig(model=order["model"], dtype="float32", max_model_len=512)
        return VllmConfig(
            model_config=target,
            cache_config=CacheConfig(),
            scheduler_config=SchedulerConfig(max_num_seqs=_PLACES, max_model_len=512, is_encoder_decoder=False),
            speculative_config=SpeculativeConfig(
                target_model_config=target,
                target_parallel_config=ParallelConfig(),
                num_speculative_tokens=order["draft_tokens"],
                **speculative,
            ),
        )

    config = configuration(method=vllm_version.METHOD, model=vllm_version.PROPOSER)
    states = RequestState(_PLACES, 512, 2048, order["draft_tokens"], config.model_config.get_vocab_size(), CPU)
    with tempfile.TemporaryDirectory() as meeting, set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, f"file://{meeting}/ranks", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)
    others = configuration(method="ngram_gpu")
    custom = configuration(method=vllm_version.METHOD, model="somebody.Elses")
    speculator = spec_decode.init_speculator(config, CPU, states)
    assert isinstance(speculator, RemoteSpeculator)
    assert isinstance(speculator, BaseSpeculator)
    speculator.init_cudagraph_manager(None)
    say(
        address=speculator.address,
        version=version,
        runner_v2=config.use_v2_model_runner,
        asynchronous=config.scheduler_config.async_scheduling,
        others=type(spec_decode.init_speculator(others, CPU, states)).__name__,
        others_runner_v2=[others.use_v2_model_runner, custom.use_v2_model_runner],
    )
    sys.stdin.readline()  # until the drafters are attached
    speculator.capture()
    plain = greedy_texts(order["model"], order["prompts"], order["max_tokens"] + 4 * (order["draft_tokens"] + 1))
    runner = generate(speculator, states, order, plain, say)
    say(
        texts=[each.output[: order["max_tokens"]] for each in sorted(runner.ended, key=lambda each: int(each.req_id))],
        plain=[text[: order["max_tokens"]] for text in plain],
        accepted=sum(each.accepted for each in runner.ended),
        faults=dict(speculator.faults),
    )
    sys.stdin.readline()  # until the parent has checked the pool; then it ends this process


CPU = torch.device("cpu")


def be_a_cpu() -> None:
    """Tells vLLM, which knows no platform of this kind, what is known of it: a CPU, without pinned memory."""
    from vllm.platforms import current_platform

    current_platform.device_type = "cpu"
    current_platform.is_pin_memory_available = lambda: False


def greedy_texts(model: str, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Returns what the target generates."""
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    texts = []
    for prompt in prompts:
        text = target.generate(
            torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
        )
        texts.append(text[0, len(prompt) :].tolist())
    return texts


def generate(speculator: Any, states: Any, order: dict[str, Any], plain: list[list[int]], say: Any) -> Any:
    """Runs all prompts. A third and two thirds on, the parent is told, and the next step waits for its line."""
    from tests.harness.stand_ins.runner_v2 import RequestV2, RunnerV2

    def logits(request: RequestV2, drafts: list[int]) -> torch.Tensor:
        begin = len(request.output)
        tokens = plain[int(request.req_id)][begin : begin + 1 + len(drafts)]
        return torch.nn.functional.one_hot(torch.tensor(tokens), states.vocab_size).float()

    runner = RunnerV2(speculator, states, VllmKernels(), logits, chunk=48, step_seconds=0.01)
    waiting = [(str(number), prompt) for number, prompt in enumerate(order["prompts"])]
    pauses = [len(waiting) // 3, 2 * len(waiting) // 3]
    while waiting or runner.requests:
        while waiting and len(runner.requests) < _PLACES:
            runner.add(*waiting.pop(0), max_tokens=order["max_tokens"])
        runner.step()
        if pauses and len(runner.ended) >= pauses[0]:
            say(running=len(runner.requests), accepted=sum(each.accepted for each in runner.ended), at=pauses.pop(0))
            sys.stdin.readline()
    return runner


class VllmKernels:
    """vLLM's kernels of a step."""

    def batch(self, fields: dict[str, Any]) -> Any:
        import numpy as np
        from vllm.v1.worker.gpu.input_batch import InputBatch, expand_idx_mapping

        count, tokens = fields["num_reqs"], fields["num_tokens"]
        ends = fields["cu_num_logits"]
        expanded, local = expand_idx_mapping(fields["idx_mapping"], int(ends[-1]), ends, 16)
        return InputBatch(
            num_reqs_after_padding=count,
            num_tokens_after_padding=tokens,
            num_draft_tokens=int(fields["num_draft_tokens_per_req"].sum()),
            expanded_idx_mapping=expanded,
            expanded_local_pos=local,
            query_start_loc_np=fields["query_start_loc"].numpy(),
            seq_lens_cpu_upper_bound=fields["seq_lens"],
            dcp_local_seq_lens=None,
            num_computed_tokens_np=np.zeros(count, dtype=np.int32),
            num_computed_prefill_tokens_np=np.zeros(count, dtype=np.int32),
            is_prefilling_np=np.zeros(count, dtype=bool),
            has_prefill=False,
            decode_graph_eligible=True,
            input_ids=torch.zeros(tokens, dtype=torch.int32),
            positions=torch.zeros(tokens, dtype=torch.int64),
            is_padding=torch.zeros(tokens, dtype=torch.bool),
            logits_indices=torch.zeros(int(ends[-1]), dtype=torch.int64),
            cu_num_logits_np=ends.numpy(),
            has_structured_output_reqs=False,
            prompt_lens=None,
            **fields,
        )

    def verify(
        self, states: Any, batch: Any, logits: torch.Tensor, inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        from vllm.v1.worker.gpu.input_batch import (
            combine_sampled_and_draft_tokens,
            get_num_sampled_and_rejected,
            prepare_pos_seq_lens,
        )
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import gather_draft_sampled
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

        lengths = batch.seq_lens.clone()
        prepare_pos_seq_lens(
            batch.idx_mapping, batch.query_start_loc, states.num_computed_tokens.gpu, batch.positions, batch.seq_lens
        )
        assert batch.seq_lens.tolist() == lengths.tolist(), "the batch is not what vLLM would compute"
        indices = combine_sampled_and_draft_tokens(
            batch.input_ids,
            batch.idx_mapping,
            states.last_sampled_tokens,
            batch.query_start_loc,
            batch.seq_lens,
            states.prefill_len.gpu,
            states.draft_tokens,
            batch.cu_num_logits,
            len(logits),
        )
        drafted, positions = gather_draft_sampled(
            batch.input_ids,
            batch.positions,
            indices,
            batch.expanded_idx_mapping,
            batch.expanded_local_pos,
            states.prefill_len.gpu,
        )
        sampled, counts = rejection_sample(
            logits,
            None,
            drafted,
            batch.cu_num_logits,
            positions,
            batch.idx_mapping,
            batch.expanded_idx_mapping,
            batch.expanded_local_pos,
            torch.zeros(_PLACES),
            torch.zeros(_PLACES, dtype=torch.int64),
            states.num_speculative_steps,
        )
        counts, rejected = get_num_sampled_and_rejected(
            counts, batch.seq_lens, batch.cu_num_logits, batch.idx_mapping, states.prefill_len.gpu
        )
        self._rejected = rejected
        return sampled, counts, rejected

    def post_update(self, states: Any, batch: Any, sampled: torch.Tensor, counts: torch.Tensor) -> None:
        from vllm.v1.worker.gpu.input_batch import post_update

        post_update(
            batch.idx_mapping,
            states.num_computed_tokens.gpu,
            states.last_sampled_tokens,
            None,
            sampled,
            counts,
            self._rejected,
            batch.query_start_loc,
            states.all_token_ids.gpu,
            states.total_len.gpu,
        )


if __name__ == "__main__":
    main()
