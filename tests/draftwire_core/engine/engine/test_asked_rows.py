"""Parts of a step's rows have their own rows of its tensors."""

import torch

from draftwire_core.engine.engine.asked_rows import AskedRows


def test_a_part_of_a_part() -> None:
    numbers = torch.arange(12.0).view(6, 2)  # one further row, as of a scored text
    whole = AskedRows([10, 11, 12, 13, 14], [True, False, True, True, False], numbers, -numbers, numbers + 100)
    part = whole.of(slice(1, 5)).of(slice(2, 3))
    assert (part.drawn, part.on_path) == ([13], [True])
    assert torch.equal(part.logits[0], numbers[3])
    assert torch.equal(part.raw[0], -numbers[3])
    assert part.states is not None and torch.equal(part.states[0], numbers[3] + 100)
    assert whole.of(slice(2)).logits is numbers
