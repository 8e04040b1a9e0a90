"""Networks that draft from features, in a service with a GPU, which is pretended: they guess what they do on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from drafter_service.models import loaded_features
from drafter_service.models.loaded_features import LoadedFeatureNetwork
from drafter_service.models.loading import load_drafter
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.device.choices import Gpus
from draftwire_core.engine.drafters.drafter import DraftSpec, FeatureDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.model.backends import choose_backend
from draftwire_core.engine.model.reading import read_model
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.engine.engines import GREEDY, tiny_model
from tests.harness.engine.pretended_gpu import pretended_gpu
from tests.harness.models.dflash_checkpoints import write_dflash
from tests.harness.models.eagle_checkpoints import write_eagle, write_parallel
from tests.harness.models.mtp_checkpoints import write_with_mtp

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

PROMPT = [5, 9, 14, 11]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(read_model, "gpus_of", lambda _: Gpus(("pretended",)))
    with pretended_gpu():
        yield


def loaded_on(device: str, settings: DrafterSettings) -> LoadedFeatureNetwork:
    loaded = load_drafter(settings.model_copy(update={"device": device}))
    assert isinstance(loaded, LoadedFeatureNetwork)
    assert loaded.info.device.startswith(device) and loaded.model.device.type == device
    assert all(each.device.type == "cpu" for each in loaded.mapping.parameters()), "the verifiers apply the map"
    return loaded


def guesses(loaded: LoadedFeatureNetwork) -> list[tuple[int, int]]:
    """The tokens that a drafter guesses behind a prompt and behind two further tokens, each with its parent."""
    drafter: FeatureDrafter = loaded.make(TreeGrowth(width=1))
    drafter.open(0, DraftSpec(PROMPT, GREEDY, 5, 40))
    generator = torch.Generator().manual_seed(1)
    found: list[tuple[int, int]] = []
    for length, new in ((0, PROMPT), (len(PROMPT), [8, 12])):
        if length:
            drafter.commit(0, length + len(new), new)
        count = len(new) - (not length)  # the last token's is not known yet
        drafter.receive(0, max(0, length - 1), torch.randn(count, loaded.model.hidden_size, generator=generator))
        while drafter.busy:
            for proposal in drafter.grow().proposals.values():
                found += zip(proposal.token_ids, proposal.parent_ids, strict=True)
    drafter.close(0)
    return found


def settings_of(directory: Path, **fields: object) -> DrafterSettings:
    return DrafterSettings.model_validate({"model": str(directory), "dtype": "float32", "kv_slots": 200, **fields})


@pytest.fixture(params=["eagle3", "mtp", "parallel", "dflash"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> DrafterSettings:
    """Two that draft step by step, and two that guess blocks."""
    if request.param == "mtp":
        return settings_of(write_with_mtp("qwen", tmp_path), mtp=True)
    if request.param == "dflash":  # embedding and output head are the target's
        tiny_model("Llama").save_pretrained(tmp_path / "target")
        return settings_of(write_dflash(tmp_path), target=str(tmp_path / "target"))
    return settings_of((write_eagle if request.param == "eagle3" else write_parallel)(tmp_path))


def test_they_guess_the_same(network: DrafterSettings, gpu: None) -> None:
    expected = guesses(loaded_on("cpu", network))
    assert len(expected) > 1
    assert guesses(loaded_on("cuda", network)) == expected


def test_they_guess_the_same_by_captured_passes(
    network: DrafterSettings, gpu: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("triton")
    expected = guesses(loaded_on("cpu", network))
    monkeypatch.setattr(choose_backend, "missing", lambda *_: None)  # which refuses float32
    monkeypatch.setattr(loaded_features, "measure_step_cost", lambda *_: StepCost([1], [1.0]))  # the interpreter's
    loaded = loaded_on("cuda", network)
    assert loaded.model.captured
    steps: list[int] = []
    drafts = loaded.model.drafts
    if drafts is not None:
        draft = drafts.draft
        monkeypatch.setattr(drafts, "draft", lambda plan: (steps.append(len(plan.steps)), draft(plan))[1])
    assert guesses(loaded) == expected
    blocks = request.node.callspec.params["network"] in ("parallel", "dflash")
    assert steps[:1] == ([] if blocks else [4]), "several steps by one call"


def test_a_gpu_is_used_if_it_is_named(tmp_path: Path, gpu: None) -> None:
    settings = settings_of(write_eagle(tmp_path))
    assert settings.asked_device == "auto"
    loaded = load_drafter(settings.on("cuda"))
    assert isinstance(loaded, LoadedFeatureNetwork) and loaded.info.device == "cpu"
    with pytest.raises(StartupError, match=r"--kv-slots: 0 does not apply to .*, which drafts from features"):
        loaded_on("cuda", settings_of(tmp_path, kv_slots=0))
