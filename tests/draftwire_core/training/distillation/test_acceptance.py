"""Expected acceptance matches drawing with the same noise."""

import math

import pytest
import torch

from draftwire_core.training.data.example import example_of
from draftwire_core.training.distillation.acceptance import coupled_acceptance, measure
from draftwire_core.training.distillation.divergence import draft_outcomes, target_outcomes

VOCABULARY = 30
DRAWS = 40_000


def outcomes(target: torch.Tensor, draft: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    best = target.log_softmax(1).topk(top, dim=1)
    return target_outcomes(best.values), draft_outcomes(draft, best.indices)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_how_often_both_draw_the_same(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(1, VOCABULARY, generator=generator)
    draft = target + torch.randn(1, VOCABULARY, generator=generator)
    noise = -torch.log(-torch.log(torch.rand(DRAWS, VOCABULARY, generator=generator)))
    same = ((target + noise).argmax(1) == (draft + noise).argmax(1)).float().mean().item()
    error = 5 * math.sqrt(same * (1 - same) / DRAWS)
    assert coupled_acceptance(*outcomes(target, draft, VOCABULARY)).item() == pytest.approx(same, abs=error)
    fewer = [coupled_acceptance(*outcomes(target, draft, top)).item() for top in (2, 8, 20)]
    assert fewer == sorted(fewer)
    assert fewer[-1] < same + error


def test_the_same_model_is_always_accepted() -> None:
    target = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(coupled_acceptance(*outcomes(target, target, VOCABULARY)), torch.ones(4).double(), atol=1e-5)


class Fixed(torch.nn.Module):
    """Predicts the current token plus one with probability 1/2, and every other token equally."""

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> object:
        logits = torch.zeros(*input_ids.shape, VOCABULARY)
        logits.scatter_(2, (input_ids + 1).unsqueeze(2), math.log(VOCABULARY - 1))
        return type("Output", (), {"logits": logits})()


def test_each_distribution_is_compared_at_its_own_position() -> None:
    """Texts of different lengths side by side; the draft is right at some positions."""
    half = math.log(0.5)
    right = example_of([1, 2, 3, 4], 2, [[3], [4], [5]], [[half]] * 3)
    wrong = example_of([5, 6], 2, [[9]], [[half]])
    found = measure(Fixed(), [right, wrong], batch_size=2)
    assert (found.positions, found.agreement) == (4, 0.75)
    # 1 / (1 for the known token + 1 for the target's other tokens + 1 for the draft's), all with probability 1/2.
    assert measure(Fixed(), [right], batch_size=1).coupled == pytest.approx(1 / 3)
    assert str(found).endswith("75.0 % greedy (4 positions)")


class Broken(torch.nn.Module):
    """Predicts no numbers, as after a training with too high a learning rate."""

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> object:
        return type("Output", (), {"logits": torch.full((*input_ids.shape, VOCABULARY), math.nan)})()


def test_what_is_no_number_agrees_with_nothing() -> None:
    """Otherwise it would not be worse than before."""
    example = example_of([1, 0, 0], 1, [[0], [0]], [[math.log(0.5)]] * 2)
    found = measure(Broken(), [example], batch_size=1)
    assert (found.coupled, found.agreement, found.positions) == (0, 0, 2)


def test_nothing_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="no examples"):
        measure(Fixed(), [], batch_size=1)
