"""Multi-token prediction layers of targets: logits are those of transformers, and no token depends on the drafter."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.drafters.mtp import mtp
from draftwire_core.engine.drafters.mtp.mtp import MtpOptions, mtp_drafter
from draftwire_core.engine.drafters.mtp.mtp_files import Mtp, load_mtp
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.backends import choose_backend
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.reading.read_model import read_model
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import GREEDY, engine_of, generate, random_tokens, specs_of
from tests.harness.engine.feature_pass import logits_of
from tests.harness.engine.pretended_gpu import pretended_gpu, to_gpu
from tests.harness.models.mtp_checkpoints import KINDS, LAYERS, VOCABULARY, WIDTH, write_with_mtp
from tests.harness.models.quantised_checkpoint import FORMS, Form

TOKENS = [5, 9, 14, 23, 42, 7]
PROMPTS = [[token % VOCABULARY for token in random_tokens(length, seed=length)] for length in (9, 3, 40)]
SAMPLED = [SamplingParams(temperature=0.8, seed=seed) for seed in range(3)]


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_mtp(request.param, tmp_path_factory.mktemp(request.param))


def target_of(checkpoint: Path, slots: int = 1000, dtype: str = "float32") -> PackedModel:
    return PackedModel.load(Checkpoint.find(str(checkpoint)), slots=slots, dtype=dtype)


def expected_logits(checkpoint: Path, states: torch.Tensor) -> torch.Tensor:
    """From transformers: [tokens, vocabulary]."""
    main = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    config = main.config
    config.num_mtp_layers = 1
    if getattr(config, "layer_types", None):
        config.mtp_layer_types = ["full_attention"]
    if getattr(config, "mlp_layer_types", None):
        config.mtp_mlp_layer_types = ["sparse"]
    main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{LAYERS}.*", r"^mtp.*"]
    mtp = MtpModel.from_pretrained(main, device_map={"": "cpu"})
    positions = torch.arange(len(TOKENS)).unsqueeze(0)
    with torch.no_grad():
        hidden = mtp.forward_layer(
            0, states.unsqueeze(0), positions, MtpCache(config=config.get_mtp_config()), torch.tensor([TOKENS])
        )
        found: torch.Tensor = mtp._project_to_logits(hidden)[0]
    return found


def test_logits_are_those_of_transformers(checkpoint: Path) -> None:
    drafter = mtp_drafter(MtpOptions(), target_of(checkpoint))
    assert drafter.tap.layers == (LAYERS,)
    torch.manual_seed(3)
    states = torch.randn(len(TOKENS), WIDTH)
    found = logits_of(drafter.model, TOKENS, states)
    torch.testing.assert_close(found, expected_logits(checkpoint, states), rtol=2e-4, atol=2e-4)


def test_the_layer_reads_the_targets_last_hidden_states(checkpoint: Path) -> None:
    """After the last norm, as they enter the output head."""
    target = target_of(checkpoint)
    drafter = mtp_drafter(MtpOptions(), target)
    slots = target.pool.take(len(TOKENS))
    builder = BatchBuilder()
    rows = [
        builder.add_row(token, at, int(slot), at == len(TOKENS) - 1)
        for at, (token, slot) in enumerate(zip(TOKENS, slots, strict=True))
    ]
    builder.add_lane(slots[:0], rows)
    batch = builder.build(target.group_size, target.device)
    batch.taps = (drafter.tap,)
    target.forward(batch)
    main = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        expected = main(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states[-1][0]
    torch.testing.assert_close(drafter.tap.states.read(slots), expected, rtol=1e-3, atol=1e-3)


class Attached(VerificationEngine):
    """An engine that attaches all its drafters to every sequence."""

    def add(self, spec: object) -> None:
        super().add(spec)  # type: ignore[arg-type]
        for source in self._local._drafters:
            self.attach(spec.sequence_id, source)  # type: ignore[attr-defined]


def test_the_tokens_are_those_of_plain_decoding(checkpoint: Path) -> None:
    check_tokens(checkpoint, [GREEDY, *SAMPLED[:2]], "float32", 16)


@pytest.mark.slow
class TestTypesAndSampling:
    @pytest.mark.parametrize("sampling", [[GREEDY] * 3, SAMPLED], ids=["greedy", "sampled"])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_the_tokens_are_those_of_plain_decoding(
        self, checkpoint: Path, sampling: list[SamplingParams], dtype: str
    ) -> None:
        check_tokens(checkpoint, sampling, dtype, 30)


def check_tokens(checkpoint: Path, sampling: list[SamplingParams], dtype: str, count: int) -> None:
    specs = specs_of(PROMPTS, count, sampling)
    plain = generate(engine_of(target_of(checkpoint, dtype=dtype)), specs).tokens
    engine = engine_of(target_of(checkpoint, dtype=dtype))
    drafter = mtp_drafter(MtpOptions(), engine.model)
    drafter._share = 0.01  # so that it drafts deep trees
    engine.__class__ = Attached
    engine.add_drafter("mtp", drafter)
    result = generate(engine, specs)
    assert result.tokens == plain
    assert result.drafted > count
    assert engine.model.pool.used == drafter.model.pool.used == 0


def test_beside_a_target_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint.find(str(write_with_mtp("deepseek", tmp_path)))
    specs = specs_of(PROMPTS[1:2], 5)
    expected = generate(engine_of(target_of(tmp_path)), specs).tokens
    monkeypatch.setattr(choose_backend, "missing", lambda *_: "a compiler")

    def load(*given: Any) -> Mtp:
        """With experts that need no operation that CPUs lack."""
        found = load_mtp(*given)
        found.model.set_experts_implementation("eager")
        return found

    monkeypatch.setattr(mtp, "load_mtp", load)
    with pretended_gpu():
        moved = read_model(checkpoint, torch.device("cpu"), dtype="float32")
        moved.set_experts_implementation("eager")
        to_gpu(moved)
        engine = engine_of(PackedModel(moved, 200))
        engine.model.checkpoint = checkpoint
        drafter = mtp_drafter(MtpOptions(), engine.model)
        drafter._share = 0.01
        engine.__class__ = Attached
        engine.add_drafter("mtp", drafter)
        result = generate(engine, specs)
    assert result.tokens == expected and result.drafted > 0


def quantised(directory: Path, form: Form) -> Path:
    """Gives a checkpoint quantised matrices, and another next to it their values. Returns the latter."""
    path, tensors, values = directory / "model.safetensors", {}, {}
    for name, tensor in load_file(path).items():
        values[name] = tensor.to(torch.bfloat16)
        if tensor.dim() == 2 and "_proj." in name and "eh_proj" not in name:
            layer = form.quantise(tensor)
            values[name] = layer.values.to(torch.bfloat16)
            own = name.removesuffix(".weight")
            tensors |= {f"{own}.{part}": each.contiguous() for part, each in layer.stored.items()}
        else:
            tensors[name] = values[name]
    save_file(tensors, path)
    config = json.loads((directory / "config.json").read_text()) | {"dtype": "bfloat16"}
    plain = directory / "plain"
    plain.mkdir()
    save_file(values, plain / "model.safetensors")
    (plain / "config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": dict(form.config)}))
    return plain


@pytest.mark.parametrize("kind", ["glm", "qwen"])
def test_a_layer_of_8_bit_floats_has_their_values(kind: str, tmp_path: Path) -> None:
    plain = quantised(write_with_mtp(kind, tmp_path), FORMS["FP8"])
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    found, expected = (
        load_mtp(Checkpoint.find(str(each)), type(model), model.get_input_embeddings(), torch.bfloat16).model
        for each in (tmp_path, plain)
    )
    weights = dict(found.model.layers.named_parameters())
    assert all(torch.equal(weights[name], each) for name, each in expected.model.layers.named_parameters())


def test_a_layer_of_other_quantised_weights_is_refused(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(quantised(write_with_mtp("qwen", tmp_path), FORMS["GPTQ"]))
    with pytest.raises(ModelLoadError, match=r"tensor mtp\..* is quantised: such prediction layers are read in 8-bit"):
        load_mtp(Checkpoint.find(str(tmp_path)), type(model), model.get_input_embeddings(), torch.bfloat16)


def test_what_is_refused(tmp_path: Path) -> None:
    directory = write_with_mtp("glm", tmp_path)
    target = target_of(directory)
    path = directory / "config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**fields, "num_nextn_predict_layers": 0}), encoding="utf-8")
    with pytest.raises(ModelLoadError, match="has no multi-token prediction layers"):
        mtp_drafter(MtpOptions(), target)
    path.write_text(json.dumps({**fields, "num_nextn_predict_layers": 2}), encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"its multi-token prediction layer: .* weights are missing"):
        mtp_drafter(MtpOptions(), target)
    target.checkpoint = None
    with pytest.raises(ModelLoadError, match="loaded from a checkpoint"):
        mtp_drafter(MtpOptions(), target)
