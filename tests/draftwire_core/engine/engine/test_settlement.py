"""The end of a step: what its outcomes hold."""

import torch

from draftwire_core.engine.engine.sequence import SequenceSpec
from tests.harness.engine.engines import GREEDY, engine_of, packed, random_tokens
from tests.harness.engine.special_models import quick_model


def test_hidden_states_come_to_the_host_in_one_copy() -> None:
    """In the engine's thread: the event loop would wait for all that the device has to do."""
    engine = engine_of(packed(quick_model(), 400))
    for number in range(3):
        engine.add(SequenceSpec(number, random_tokens(5 + number, seed=number), 40, GREEDY))
        if number < 2:
            engine.attach(number, "remote", hidden_states=True)
    for _ in range(3):
        states = {outcome.sequence_id: outcome.hidden_state for outcome in engine.step().outcomes}
        assert states[2] is None
        first, second = states[0], states[1]
        assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
        assert first.shape == (64,) and first.device.type == second.device.type == "cpu"
        assert not torch.equal(first, second)
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
