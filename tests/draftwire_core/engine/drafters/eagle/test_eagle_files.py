"""Both layouts load and compute the same, and what does not fit or is not supported is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftwire_core.engine.drafters.eagle.eagle3 import EagleOptions, eagle3_drafter
from draftwire_core.engine.drafters.eagle.eagle_files import load_eagle
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from tests.harness.engine.engines import VOCABULARY, packed, run_in_parts, tiny_model
from tests.harness.models.eagle_checkpoints import (
    as_original,
    change_config,
    change_tensors,
    eagle_config,
    write_eagle,
)
from tests.harness.models.random_network import config_of

SHAPE = TargetShape(3, 64, VOCABULARY, "LlamaForCausalLM")
REFERENCE = Path(__file__).parent / "written_by_speculators"


def test_both_layouts_are_the_same_network(tmp_path: Path) -> None:
    ours = load_eagle(write_eagle(tmp_path / "a", eagle_config(draft_vocab_size=150)), SHAPE, torch.float32)
    original = as_original(write_eagle(tmp_path / "b", eagle_config(draft_vocab_size=150)))
    theirs = load_eagle(original, SHAPE, torch.float32)
    assert not ours.lacking
    assert theirs.lacking == {"embed_tokens.weight"}
    assert theirs.aux_layers == (1, 2, 3), "in eagle_config, ids are of layers whose outputs are read"
    assert ours.target_ids is not None
    assert theirs.target_ids is not None
    assert torch.equal(ours.target_ids, theirs.target_ids)
    for name, tensor in ours.model.state_dict().items():
        if "embed_tokens" not in name:
            assert torch.equal(tensor, theirs.model.state_dict()[name])


def test_what_nvidias_modelopt_writes(tmp_path: Path) -> None:
    own = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True, "use_mtp_layernorm": False}
    own |= {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "next_layer_regular": True}
    own |= {"parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1}
    found = load_eagle(as_original(write_eagle(tmp_path), eagle_config=own), SHAPE, torch.float32)
    assert found.aux_layers == (1, 2, 3)


def test_the_usual_layers(tmp_path: Path) -> None:
    config = eagle_config()
    directory = change_config(write_eagle(tmp_path, config), eagle_aux_hidden_state_layer_ids=None)
    assert load_eagle(directory, SHAPE._replace(layers=36), torch.float32).aux_layers == (2, 18, 33)


def test_the_target_lends_what_is_missing(tmp_path: Path) -> None:
    directory = change_tensors(write_eagle(tmp_path), embed_tokens__weight=None, lm_head__weight=None)
    target = packed(tiny_model("Llama"), 100)
    drafter = eagle3_drafter(EagleOptions(str(directory)), target)
    tokens = torch.tensor([[5, 9]])
    embedding = drafter.model.model.get_input_embeddings()
    assert torch.equal(embedding(tokens), target.model.get_input_embeddings()(tokens))
    assert drafter.model.vocab_size == VOCABULARY


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_logits_are_those_of_speculators(name: str) -> None:
    """The checkpoints and the results were written by speculators itself (`write_reference.py`)."""
    place = REFERENCE / name
    expected = load_file(place / "expected.safetensors")
    eagle = load_eagle(place, TargetShape(3, 16, 60, "LlamaForCausalLM"), torch.float32)
    model = PackedModel(eagle.model, 32, row_exact=False)
    states = SlotStates(32, 16, torch.float32)
    with torch.no_grad():
        features = eagle.mapping(expected["states"])
    feed_back = model.model.model.norm if eagle.config.norm_output else torch.nn.Identity()
    tokens = expected["tokens"].tolist()
    slots = model.pool.take(len(tokens))
    prefix = len(features)
    for first, last in ((0, prefix), *((at, at + 1) for at in range(prefix, len(tokens)))):
        builder = BatchBuilder()
        rows = [builder.add_row(tokens[at], at, int(slots[at]), wants_logits=True) for at in range(first, last)]
        builder.add_lane(slots[:first], rows)
        batch = builder.build(model.group_size, model.device)
        batch.features = features if first == 0 else states.read(slots[first - 1 : first])
        batch.taps = [Tap([model.layers], feed_back, states)]
        torch.testing.assert_close(model.forward(batch), expected["logits"][first:last], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"speculators_model_type": "xpress"}, "speculators_model_type must be 'eagle3' or 'peagle', got 'xpress'"),
        ({"speculators_model_type": None}, "architectures must hold LlamaForCausalLMEagle3"),
        ({"parallel_drafting": True}, "parallel_drafting is not supported"),
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm exclude each other"),
        ({"norm_output": 3}, "norm_output must be true or false, got 3"),
        ({"draft_vocab_size": 0}, "draft_vocab_size must be a positive whole number, got 0"),
        ({"draft_vocab_size": 150}, "tensor d2t is missing"),
        ({"target_hidden_size": 128}, "hidden size 128 does not match the target's 64"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 4]}, "but the target has 3 layers"),
        ({"eagle_aux_hidden_state_layer_ids": "all"}, "must be a list of layers' indices"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1]}, "tensor fc.weight has shape"),
        ({"transformer_layer_config": 3}, "transformer_layer_config must be an object"),
        ({"speculators_config": {"algorithm": "dflash"}}, "speculators_config.algorithm must be 'eagle3'"),
        (
            {"speculators_config": {"verifier": {"architectures": ["Qwen3ForCausalLM"]}}},
            "speculators_config.verifier.architectures is Qwen3ForCausalLM, but the target is a LlamaForCausalLM",
        ),
        ({"norm_before_fc": True}, "tensor input_norm.weight is missing"),
    ],
)
def test_bad_fields(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_eagle(change_config(write_eagle(tmp_path), **fields), SHAPE, torch.float32)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "mamba"}, "transformer_layer_config.model_type must be one of llama, qwen3, got 'mamba'"),
        ({"num_experts": 8}, "transformer_layer_config.num_experts is not supported"),
        ({"vocab_size": 301}, "vocabulary size 301 does not match the target's 300"),
        ({"num_hidden_layers": 99}, "num_hidden_layers must be from 1 to 16, got 99"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide num_attention_heads"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "rope_scaling: type must be one of",
        ),
        ({"hidden_size": "wide"}, "transformer_layer_config. cannot be configured"),
    ],
)
def test_bad_fields_of_the_layers(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    directory = write_eagle(tmp_path)
    layers = config_of(directory)["transformer_layer_config"]
    with pytest.raises(ValueError, match=words):
        load_eagle(change_config(directory, transformer_layer_config={**layers, **fields}), SHAPE, torch.float32)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"eagle_config": {"use_aux_hidden_state": False}}, "eagle_config.use_aux_hidden_state must be True"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "eagle_config.use_mtp_layernorm must be False"),
        ({"eagle_config": {"heads": 3}}, "eagle_config.heads is not supported"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "eagle_config.parallel_draft_step must be 1, got 4"),
        ({"eagle_config": {"next_layer_regular": False}}, "eagle_config.next_layer_regular must be True"),
        ({"ffn_shared": True}, "ffn_shared is not supported"),
    ],
)
def test_bad_fields_of_the_original_layout(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_eagle(as_original(write_eagle(tmp_path), **fields), SHAPE, torch.float32)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"fc__weight": None}, "tensor fc.weight is missing"),
        ({"norm__weight": torch.ones(3)}, "tensor norm.weight has shape"),
        ({"gate__weight": torch.ones(3)}, "tensor gate.weight is not supported"),
        ({"d2t": torch.full((150,), 7).cumsum(0)}, "tensor d2t does not map to distinct ids below 300"),
        ({"d2t": torch.zeros(150, dtype=torch.int64)}, "tensors d2t and t2d contradict each other"),
        ({"lm_head__weight": None}, "tensor lm_head.weight is missing, and the target's own is for another vocab"),
    ],
)
def test_bad_tensors(tmp_path: Path, tensors: dict[str, torch.Tensor | None], words: str) -> None:
    directory = write_eagle(tmp_path, eagle_config(draft_vocab_size=150))
    with pytest.raises(ValueError, match=words):
        load_eagle(change_tensors(directory, **tensors), SHAPE, torch.float32)


def test_bad_files(tmp_path: Path) -> None:
    target = packed(tiny_model("Llama"), 100)
    directory = write_eagle(tmp_path)
    weights = directory / "model.safetensors"
    whole = weights.read_bytes()
    for content, words in (
        (whole[: len(whole) // 2], "model.safetensors is damaged: it ends before tensor"),
        (None, "has neither model.safetensors nor pytorch_model.bin"),
    ):
        weights.unlink()
        if content is not None:
            weights.write_bytes(content)
        with pytest.raises(ModelLoadError, match=words):
            eagle3_drafter(EagleOptions(str(directory)), target)
    (directory / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read"):
        eagle3_drafter(EagleOptions(str(directory)), target)


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    directory = change_tensors(write_eagle(tmp_path), norm__weight=torch.full((64,), torch.nan))
    with pytest.raises(ModelLoadError, match="logits are not finite numbers"):
        eagle3_drafter(EagleOptions(str(directory)), packed(tiny_model("Llama"), 100))


FLAGS = pytest.mark.parametrize("flags", [{}, {"norm_before_residual": True}])
KINDS = pytest.mark.parametrize("kind", ["llama", "qwen3"])


@FLAGS
@KINDS
def test_the_fused_layer_computes_what_the_library_does(tmp_path: Path, kind: str, flags: dict[str, bool]) -> None:
    """The error is that of rounding."""
    expected, found = (logits_of(fusible(tmp_path, kind, flags, dtype)) for dtype in (torch.float32, torch.bfloat16))
    assert ((found - expected).abs().max() / expected.std()).item() < 0.1


@FLAGS
@KINDS
def test_one_call_gives_the_bits_of_its_parts(tmp_path: Path, kind: str, flags: dict[str, bool]) -> None:
    model = fusible(tmp_path, kind, flags, torch.bfloat16)
    (layer,) = model.model.model.layers
    if layer.compiled is None:
        pytest.skip("this processor has no compiled products")
    whole = logits_of(model)
    run_in_parts(model)
    assert torch.equal(logits_of(model), whole)


def fusible(directory: Path, kind: str, flags: dict[str, bool], dtype: torch.dtype) -> PackedModel:
    """A network whose heads are as large as those of fused layers."""
    config = eagle_config(kind, **flags)
    config.layers.head_dim = 64
    eagle = load_eagle(write_eagle(directory, config), SHAPE, dtype)
    return PackedModel(eagle.model, 32, row_exact=False)


def logits_of(model: PackedModel) -> torch.Tensor:
    """Logits of nine rows that read random features."""
    builder = BatchBuilder()
    slots = model.pool.take(9)
    rows = [builder.add_row(7 + at, at, int(slots[at]), wants_logits=True) for at in range(9)]
    builder.add_lane(slots[:0], rows)
    batch = builder.build(model.group_size, model.device)
    batch.features = torch.randn(9, 64, generator=torch.Generator().manual_seed(2)).to(model.dtype)
    logits = model.forward(batch).float()
    model.pool.give_back(slots)
    return logits


QWEN = {"max_window_layers": 36, "sliding_window": None, "use_sliding_window": False, "qkv_bias": False}
"""What SpecForge copies from the configurations of Qwen targets into those of heads with Llama's layers."""


@pytest.mark.parametrize(
    "fields",
    [QWEN, QWEN | {"sliding_window": 4096}, {"layer_types": ["full_attention"]}, {"something_new": None}],
)
def test_fields_that_change_nothing_are_accepted(tmp_path: Path, fields: dict[str, object]) -> None:
    eagle3_drafter(EagleOptions(str(as_original(write_eagle(tmp_path), **fields))), packed(tiny_model("Llama"), 100))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (QWEN | {"use_sliding_window": True}, "use_sliding_window must be False for such layers, got True"),
        ({"sliding_window": 4096}, "sliding_window is not supported"),
        ({"qkv_bias": True}, "qkv_bias must be False for such layers, got True"),
        ({"layer_types": ["sliding_attention"]}, "layer_types is not supported"),
        ({"something_new": False}, "something_new is not supported"),
    ],
)
def test_fields_that_change_what_is_computed_are_refused(tmp_path: Path, fields: dict[str, object], words: str) -> None:
    directory = as_original(write_eagle(tmp_path), **fields)
    with pytest.raises(ModelLoadError, match=words):
        eagle3_drafter(EagleOptions(str(directory)), packed(tiny_model("Llama"), 100))
