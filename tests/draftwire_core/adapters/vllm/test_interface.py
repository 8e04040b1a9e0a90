"""The parts of vLLM that the adapter uses are there, in each vLLM that can be found; nothing of it is imported.

Where vLLMs are found: `tests/harness/vllm_sources.py`.
"""

import ast
import inspect
from functools import cache
from pathlib import Path

import pytest
import torch

from draftwire_core.adapters.vllm.remote_speculator import RemoteSpeculator
from tests.harness.stand_ins.fake_vllm import vllm_config
from tests.harness.vllm_sources import sources

FOUND = sources()
pytestmark = pytest.mark.skipif(not FOUND, reason="no vLLM is here")


@pytest.fixture(params=FOUND or [Path()], ids=lambda place: place.parent.name)
def vllm(request: pytest.FixtureRequest) -> Path:
    place: Path = request.param
    return place


@cache
def module(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def named(path: Path, name: str) -> ast.ClassDef:
    found = [node for node in module(path).body if isinstance(node, ast.ClassDef) and node.name == name]
    assert found, f"{path.name} has no class {name}"
    return found[0]


def fields(path: Path, name: str) -> set[str]:
    """The annotated fields of a class, and the attributes that its methods set."""
    found: set[str] = set()
    for node in ast.walk(named(path, name)):
        if isinstance(node, ast.AnnAssign):
            target = node.target
            found.add(target.id if isinstance(target, ast.Name) else ast.unparse(target).removeprefix("self."))
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target).removeprefix("self.") for target in node.targets}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def arguments(path: Path, kind: str, method: str) -> list[str]:
    for node in named(path, kind).body:
        if isinstance(node, ast.FunctionDef) and node.name == method:
            return [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
    raise AssertionError(f"{kind} has no method {method}")


def function(where: ast.Module | ast.ClassDef, name: str) -> ast.FunctionDef:
    found = [node for node in where.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(found) == 1, name
    return found[0]


def calls(where: ast.AST, name: str) -> list[ast.Call]:
    return [node for node in ast.walk(where) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]


def imported(path: Path, name: str) -> str | None:
    """The module from which another one imports a name."""
    for node in module(path).body:
        if isinstance(node, ast.ImportFrom) and name in [each.name for each in node.names]:
            return node.module
    return None


def test_the_proposer_is_made_from_the_configuration(vllm: Path) -> None:
    text = (vllm / "v1/spec_decode/custom_class_proposer.py").read_text(encoding="utf-8")
    assert "instance = user_class(vllm_config)" in text


def test_how_the_runner_calls_it(vllm: Path) -> None:
    """Positional: sampled tokens, lengths, tokens; `slot_mappings` by name."""
    tree = module(vllm / "v1/worker/gpu_model_runner.py")
    branches = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "spec_config.method == 'custom_class'"
    ]
    assert len(branches) == 1
    (call,) = (
        node
        for part in branches[0].body
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "propose"
    )
    assert [ast.unparse(each) for each in call.args] == [
        "sampled_token_ids",
        "self.input_batch.num_tokens_no_spec",
        "self.input_batch.token_ids_cpu",
    ]
    assert [each.arg for each in call.keywords] == ["slot_mappings"]


def test_what_a_step_says(vllm: Path) -> None:
    output = vllm / "v1/core/sched/output.py"
    used = {"finished_req_ids", "scheduled_spec_decode_tokens", "scheduled_new_reqs", "total_num_scheduled_tokens"}
    assert used <= fields(output, "SchedulerOutput")
    new = {"req_id", "prompt_token_ids", "prompt_embeds", "sampling_params"}
    assert new <= fields(output, "NewRequestData")


def test_what_the_runner_holds(vllm: Path) -> None:
    runner = fields(vllm / "v1/worker/gpu_model_runner.py", "GPUModelRunner")
    assert {"input_batch", "requests", "drafter"} <= runner
    state = fields(vllm / "v1/worker/gpu_input_batch.py", "CachedRequestState")
    assert {"sampling_params", "prompt_embeds", "num_prompt_tokens"} <= state
    batch = fields(vllm / "v1/worker/gpu_input_batch.py", "InputBatch")
    assert {"req_ids", "num_tokens_no_spec", "token_ids_cpu"} <= batch


V1 = "v1/worker/gpu_model_runner.py"


def test_what_coupled_sampling_replaces_in_runner_v1(vllm: Path) -> None:
    """Two objects, which the runner makes before the worker loads the model, and only calls."""
    runner = named(vllm / V1, "GPUModelRunner")
    made = function(runner, "__init__")
    assert calls(made, "Sampler")
    assert calls(made, "RejectionSampler")
    assert {"sampler", "rejection_sampler", "speculative_config", "device"} <= fields(vllm / V1, "GPUModelRunner")
    used = [node for node in ast.walk(runner) if isinstance(node, ast.Attribute)]
    assert not [node.attr for node in used if ast.unparse(node.value) == "self.rejection_sampler"]
    drawn = function(runner, "_sample")
    [plain] = calls(drawn, "self.sampler")
    assert {each.arg: ast.unparse(each.value) for each in plain.keywords} == {
        "logits": "logits",
        "sampling_metadata": "sampling_metadata",
    }
    [verified] = calls(drawn, "self.rejection_sampler")
    assert [ast.unparse(each) for each in verified.args] == [
        "spec_decode_metadata",
        "draft_probs",
        "logits",
        "sampling_metadata",
    ]
    text = ast.unparse(function(runner, "sample_tokens"))
    # Lengths are without the step's tokens, and forbidden tokens are out of the logits.
    assert text.index("apply_grammar_bitmask(") < text.index("self._sample(") < text.index("self._bookkeeping_sync(")


def test_what_biases_logits_in_runner_v1(vllm: Path) -> None:
    """A processor that vLLM leaves out with speculation, and a list that takes it."""
    processors = vllm / "v1/sample/logits_processor"
    assert arguments(processors / "builtin.py", "LogitBiasLogitsProcessor", "__init__")[1:] == [
        "_",
        "device",
        "is_pin_memory",
    ]
    assert "biases" in fields(processors / "builtin.py", "LogitBiasLogitsProcessor")
    assert "non_argmax_invariant" in fields(processors / "state.py", "LogitsProcessors")
    assert {"logitsprocs"} <= fields(vllm / "v1/worker/gpu_input_batch.py", "InputBatch")
    assert "logit_bias" in fields(vllm / "sampling_params.py", "SamplingParams")
    applied = ast.unparse(function(named(vllm / "v1/sample/sampler.py", "Sampler"), "apply_logits_processors"))
    parts = ["in sampling_metadata.logitsprocs.non_argmax_invariant", "self.apply_penalties("]
    assert [part for part in parts if part in applied] == parts
    assert sorted(parts, key=applied.index) == parts


def test_how_the_sampler_of_runner_v1_draws(vllm: Path) -> None:
    sampler = named(vllm / "v1/sample/sampler.py", "Sampler")
    assert arguments(vllm / "v1/sample/sampler.py", "Sampler", "forward") == [
        "self",
        "logits",
        "sampling_metadata",
        "predict_bonus_token",
        "logprobs_mode_override",
    ]
    drawn = function(sampler, "sample")
    [call] = calls(drawn, "self.topk_topp_sampler")
    assert [ast.unparse(each) for each in call.args] == [
        "logits",
        "sampling_metadata.generators",
        "sampling_metadata.top_k",
        "sampling_metadata.top_p",
    ]
    text = ast.unparse(drawn)
    assert text.index("self.apply_temperature(") < text.index("self.topk_topp_sampler(")
    assert "logprobs_mode" in fields(vllm / "v1/sample/ops/topk_topp_sampler.py", "TopKTopPSampler")
    assert {"temperature", "top_k", "top_p", "min_p", "seed"} <= fields(vllm / "sampling_params.py", "SamplingParams")
    assert "seed" in fields(vllm / "config/model.py", "ModelConfig")


def test_what_coupled_sampling_uses_of_the_rejection_sampler(vllm: Path) -> None:
    path = vllm / "v1/sample/rejection_sampler.py"
    assert {"sampler", "is_processed_logprobs_mode"} <= fields(path, "RejectionSampler")
    expected = {
        "forward": ["metadata", "draft_probs", "logits", "sampling_metadata"],
        "apply_logits_processors": ["logits", "sampling_metadata", "metadata"],
        "_get_logprobs_tensors": [
            "max_num_logprobs",
            "metadata",
            "logits",
            "target_logits",
            "bonus_logits",
            "sampled_token_ids",
        ],
    }
    for method, named_so in expected.items():
        assert arguments(path, "RejectionSampler", method)[1:] == named_so, method
    constraints = function(module(path), "apply_sampling_constraints")
    assert [each.arg for each in constraints.args.args] == ["logits", "cu_num_draft_tokens", "sampling_metadata"]
    drafts = {"draft_token_ids", "num_draft_tokens", "cu_num_draft_tokens"}
    drafts |= {"target_logits_indices", "bonus_logits_indices"}
    assert drafts <= fields(vllm / "v1/spec_decode/metadata.py", "SpecDecodeMetadata")
    assert {"all_greedy", "max_num_logprobs"} <= fields(vllm / "v1/sample/metadata.py", "SamplingMetadata")
    assert fields(vllm / "v1/outputs.py", "SamplerOutput") == {"sampled_token_ids", "logprobs_tensors"}
    default = next(
        node.value
        for node in named(vllm / "config/speculative.py", "SpeculativeConfig").body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "rejection_sample_method"
    )
    assert default is not None
    assert ast.literal_eval(default) == "standard"


def test_what_coupled_sampling_uses_of_runner_v2(vllm: Path) -> None:
    """A list of processors, to which the worker adds one once the target is loaded."""
    sampler = vllm / "v1/worker/gpu/sample/sampler.py"
    assert {"logits_processors", "logprobs_mode", "return_sampling_mask"} <= fields(sampler, "Sampler")
    made = ast.unparse(function(named(vllm / RUNNER, "GPUModelRunner"), "load_model"))
    assert "self.sampler = Sampler(" in made
    added = ast.unparse(function(named(sampler, "Sampler"), "add_request"))
    assert "needs_processing |= processor.add_request(req_idx, sampling_params)" in added
    applied = ast.unparse(function(named(sampler, "Sampler"), "apply_sampling_params"))
    parts = ["torch.empty_like(logits, dtype=torch.float32)", "processor.apply(logits, ctx)", "apply_temperature("]
    assert [part for part in parts if part in applied] == parts
    assert sorted(parts, key=applied.index) == parts
    verified = function(named(vllm / SPECULATORS / "rejection_sampler.py", "RejectionSampler"), "_verify")
    assert calls(verified, "self.sampler.apply_sampling_params")
    interface = vllm / "v1/worker/gpu/sample/logits_processor/interface.py"
    for method, given in (("add_request", ["req_idx", "sampling_params"]), ("apply", ["logits", "ctx"])):
        assert arguments(interface, "LogitsProcessor", method)[1:] == given
    assert arguments(interface, "LogitsProcessor", "apply_staged_writes") == ["self"]
    assert {"expanded_idx_mapping", "idx_mapping_np", "pos"} <= fields(interface, "LogitsContext")
    assert {"max_num_reqs", "index_to_req_id"} <= fields(vllm / "v1/worker/gpu/states.py", "RequestState")
    new = ast.unparse(function(named(vllm / RUNNER, "GPUModelRunner"), "add_requests"))
    # A request has its place, by which its id is found, before the processors hear of it.
    assert new.index("self.req_states.add_request(") < new.index("self.sampler.add_request(")


def test_what_says_whether_scheduling_is_asynchronous(vllm: Path) -> None:
    assert "async_scheduling" in fields(vllm / "config/scheduler.py", "SchedulerConfig")


def test_the_workers(vllm: Path) -> None:
    named(vllm / "v1/worker/cpu_worker.py", "CPUWorker")
    named(vllm / "v1/worker/xpu_worker.py", "XPUWorker")
    worker = vllm / "v1/worker/gpu_worker.py"
    assert arguments(worker, "Worker", "load_model")[0] == "self"
    assert arguments(worker, "Worker", "execute_model") == ["self", "scheduler_output"]
    assert arguments(worker, "Worker", "shutdown") == ["self"]
    assert arguments(worker, "Worker", "get_model") == ["self"]
    assert "def get_tp_group(" in (vllm / "distributed/parallel_state.py").read_text(encoding="utf-8")


def test_the_method_is_known_and_is_listed_as_what_the_second_runner_lacks(vllm: Path) -> None:
    """`registration` takes it off that list by its text."""
    assert '"custom_class"' in (vllm / "config/speculative.py").read_text(encoding="utf-8")
    method = function(named(vllm / "config/vllm.py", "VllmConfig"), "_get_v2_model_runner_unsupported_features")
    assert [each.arg for each in method.args.args] == ["self"]
    assert "unsupported.append(f\"speculative method '{speculative_config.method}'\")" in ast.unparse(method)
    listed = [node.value for node in ast.walk(method) if isinstance(node, ast.Constant)]
    assert "custom_class" in listed, "V2 would be taken, and would not call the proposer"


def test_where_plugins_are_loaded(vllm: Path) -> None:
    """In the process that makes the configuration, and in each worker before it makes its model runner."""
    assert 'DEFAULT_PLUGINS_GROUP = "vllm.general_plugins"' in (vllm / "plugins/__init__.py").read_text(
        encoding="utf-8"
    )
    for place in ("engine/arg_utils.py", "v1/engine/core.py", "v1/worker/worker_base.py"):
        assert "load_general_plugins()" in (vllm / place).read_text(encoding="utf-8"), place


RUNNER = "v1/worker/gpu/model_runner.py"
SPECULATORS = "v1/worker/gpu/spec_decode"


def test_what_the_registration_replaces(vllm: Path) -> None:
    made = function(module(vllm / SPECULATORS / "__init__.py"), "init_speculator")
    assert [each.arg for each in made.args.args] == ["vllm_config", "device", "req_states"]
    assert imported(vllm / RUNNER, "init_speculator") == "vllm.v1.worker.gpu.spec_decode"
    [call] = calls(function(named(vllm / RUNNER, "GPUModelRunner"), "__init__"), "init_speculator")
    assert [ast.unparse(each) for each in call.args] == ["self.vllm_config", "self.device", "self.req_states"]


def test_what_runner_v2_asks_of_a_speculator(vllm: Path) -> None:
    """All methods and attributes that it uses of one that is not a draft model, and no others."""
    runner = named(vllm / RUNNER, "GPUModelRunner")
    used = {
        node.attr
        for node in ast.walk(runner)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self.speculator"
    }
    of_draft_models = {"load_model", "set_attn", "draft_attn_layer_names", "observe_verification", "model", "dcp_size"}
    # The last two are used only with what `registration` refuses: adaptive verification and watermarking.
    refused = {"draft_token_confidence_probs", "prepare_watermarking"}
    speculator = RemoteSpeculator(vllm_config(Path()), torch.device("cpu"), None)
    for name in used - of_draft_models - refused:
        assert hasattr(speculator, name), f"runner V2 of {vllm.parent.name} uses speculator.{name}"
    assert used >= {"propose", "capture", "init_cudagraph_manager", "supports_mm_inputs", "draft_logits"}


def test_the_speculator_has_the_interface_of_vllms(vllm: Path) -> None:
    base = named(vllm / SPECULATORS / "speculator.py", "BaseSpeculator")
    abstract = [
        node
        for node in base.body
        if isinstance(node, ast.FunctionDef) and "abstractmethod" in [ast.unparse(each) for each in node.decorator_list]
    ]
    assert len(abstract) >= 3
    for method in abstract:
        ours = inspect.signature(inspect.unwrap(getattr(RemoteSpeculator, method.name))).parameters.values()
        assert [each.name for each in ours] == [each.arg for each in method.args.args], method.name
        defaults = [each.default for each in ours if each.default is not inspect.Parameter.empty]
        assert defaults == [ast.literal_eval(each) for each in method.args.defaults], method.name
    for node in base.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            assert getattr(RemoteSpeculator, ast.unparse(node.target)) == ast.literal_eval(node.value)


def test_how_runner_v2_calls_the_speculator(vllm: Path) -> None:
    sampled = function(named(vllm / RUNNER, "GPUModelRunner"), "sample_tokens")
    [call] = calls(sampled, "self.speculator.propose")
    assert [ast.unparse(each) for each in call.args] == [
        "input_batch",
        "attn_metadata",
        "slot_mappings_by_layer",
        "spec_hidden_states",
        "aux_hidden_states",
        "num_sampled",
        "num_rejected",
        "self.req_states.last_sampled_tokens",
        "self.req_states.next_prefill_tokens",
        "self.sampler.sampling_states.temperature.gpu",
        "self.sampler.sampling_states.seeds.gpu",
    ]
    text = ast.unparse(sampled)
    # The sampled tokens are in the states before, and the result goes into the states of the batch's requests.
    assert text.index("self.postprocess_sampled(") < text.index("self.speculator.propose(")
    assert "self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens" in text


def test_what_the_speculator_reads_of_runner_v2(vllm: Path) -> None:
    batch = fields(vllm / "v1/worker/gpu/input_batch.py", "InputBatch")
    assert {"req_ids", "num_reqs", "idx_mapping", "idx_mapping_np", "num_tokens", "num_draft_tokens_per_req"} <= batch
    assert {"query_start_loc", "seq_lens"} <= batch
    states = fields(vllm / "v1/worker/gpu/states.py", "RequestState")
    assert {"req_id_to_index", "all_token_ids", "total_len", "max_seq_len", "last_sampled_tokens"} <= states
    assert "prefill_token_ids" in fields(vllm / "v1/core/sched/output.py", "NewRequestData")
    group = named(vllm / "distributed/parallel_state.py", "GroupCoordinator")
    assert [each.arg for each in function(group, "broadcast").args.args] == ["self", "input_", "src"]
    assert {"rank_in_group", "world_size"} <= fields(vllm / "distributed/parallel_state.py", "GroupCoordinator")


def test_the_states_that_hold_a_preempted_request_drop_it(vllm: Path) -> None:
    """The speculator ends what the states no longer hold; a request that comes back is new to them."""
    finish = ast.unparse(function(named(vllm / RUNNER, "GPUModelRunner"), "finish_requests"))
    assert "finished_req_ids.union(preempted_req_ids)" in finish


def test_how_runner_v2_is_asked_for_hidden_states(vllm: Path) -> None:
    """By an attribute, which it sets when it is made, and reads when it loads the target and after each pass."""
    runner = named(vllm / RUNNER, "GPUModelRunner")
    assert {"use_aux_hidden_state_outputs", "vllm_config", "model"} <= fields(vllm / RUNNER, "GPUModelRunner")
    name = "self.use_aux_hidden_state_outputs"
    setting = [
        method.name
        for method in runner.body
        if isinstance(method, ast.FunctionDef)
        for node in ast.walk(method)
        if isinstance(node, ast.Assign) and name in [ast.unparse(target) for target in node.targets]
    ]
    assert set(setting) == {"__init__"}
    loaded = ast.unparse(function(runner, "load_model"))
    assert loaded.index(f"if {name}:") < loaded.index("set_eagle3_aux_hidden_state_layers(")
    for made in ("execute_model", "capture_model"):
        assert name in ast.unparse(function(runner, made)), made


def test_which_hidden_states_a_target_gives(vllm: Path) -> None:
    """Those that enter the layers, in their order, however they are asked for; the number of layers is the last."""
    interfaces = vllm / "model_executor/models/interfaces.py"
    chosen = function(named(interfaces, "SupportsEagle3"), "set_aux_hidden_state_layers")
    assert [each.arg for each in chosen.args.args] == ["self", "layers"]
    assert "tuple(sorted(set(layers)))" in interfaces.read_text(encoding="utf-8")
    llama = ast.unparse(function(named(vllm / "model_executor/models/llama.py", "LlamaModel"), "forward"))
    assert "self._maybe_add_hidden_state(aux_hidden_states, idx + 1, hidden_states, residual)" in llama


def test_what_is_read_of_the_configuration_for_hidden_states(vllm: Path) -> None:
    """A compiled target is kept by a hash of the configuration, its additional part included."""
    assert "additional_config" in fields(vllm / "config/vllm.py", "VllmConfig")
    hashed = ast.unparse(function(named(vllm / "config/vllm.py", "VllmConfig"), "compute_hash"))
    assert "json.dumps(additional_config, sort_keys=True)" in hashed
    assert "pipeline_parallel_size" in fields(vllm / "config/parallel.py", "ParallelConfig")
    assert {"hf_text_config", "dtype"} <= fields(vllm / "config/model.py", "ModelConfig")
    assert function(named(vllm / "config/model.py", "ModelConfig"), "get_hidden_size")


def test_which_rows_are_rejected(vllm: Path) -> None:
    """The last ones of a request, and none of a prompt."""
    text = (vllm / "v1/worker/gpu/input_batch.py").read_text(encoding="utf-8")
    assert "num_rejected = num_logits - num_sampled" in text
    assert "num_rejected = tl.where(is_chunked_prefilling, 0, num_rejected)" in text


def test_what_the_registration_refuses(vllm: Path) -> None:
    assert "prefill_context_parallel_size" in fields(vllm / "config/parallel.py", "ParallelConfig")
    assert "enable_adaptive_verification" in fields(vllm / "config/speculative.py", "SpeculativeConfig")
    assert "watermark_config" in (vllm / "config/vllm.py").read_text(encoding="utf-8")
