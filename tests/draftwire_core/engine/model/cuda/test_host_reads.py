"""Operations that wait for a device are found on a CPU."""

from collections.abc import Callable

import pytest
import torch

from draftwire_core.engine.model.cuda.graph_capture import HostReadError, NoHostReads

NUMBERS = torch.arange(6.0)


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (lambda: NUMBERS.sum().item(), "item|_local_scalar_dense"),
        (lambda: bool(NUMBERS[1]), "is_nonzero|item|_local_scalar_dense"),
        (NUMBERS.nonzero, "nonzero"),
        (lambda: NUMBERS[NUMBERS > 2], "index by a mask"),
        (lambda: torch.where(NUMBERS > 2), "where|nonzero"),
        (NUMBERS.unique, "_unique2"),
        (lambda: torch.equal(NUMBERS, NUMBERS), "equal"),
        (lambda: NUMBERS.repeat_interleave(torch.ones(6, dtype=torch.int64)), "repeat_interleave"),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_the_host_must_know_is_refused(run: Callable[[], object], name: str, inference: bool) -> None:
    with torch.inference_mode(inference), NoHostReads(), pytest.raises(HostReadError, match=f"^({name})"):
        run()


@pytest.mark.parametrize("inference", [False, True])
def test_copies_to_another_device_are_refused(inference: bool) -> None:
    """The meta device stands in for a GPU."""
    with torch.inference_mode(inference), NoHostReads():
        with pytest.raises(HostReadError, match="a copy between cpu and meta waits"):
            NUMBERS.to("meta")
        with pytest.raises(HostReadError, match="a copy between cpu and meta waits"):
            torch.empty(6, device="meta").copy_(NUMBERS)
        assert torch.empty(6, device="meta").mul(2.0).shape == (6,)  # a number is no copy


@pytest.mark.parametrize("inference", [False, True])
def test_other_operations_are_not(inference: bool) -> None:
    with torch.inference_mode(inference), NoHostReads():
        mask = NUMBERS > 2
        assert torch.where(mask, NUMBERS, 0.0).shape == NUMBERS.masked_fill(mask, 1.0).shape
        assert NUMBERS[torch.tensor([1, 2])].shape == NUMBERS.index_select(0, torch.tensor([1, 2])).shape
        assert NUMBERS.repeat_interleave(2).shape == (12,)
