"""The data set: reading back what was written, a crash that costs one record, and the bound on its size."""

from pathlib import Path

import numpy as np
import pytest

from draftwire_core.training.data.dataset import Dataset, DatasetError
from draftwire_core.training.data.example import Example, example_of

FACTS = {"target": "abc", "top": 3}
MUCH = 1 << 20


def example(number: int) -> Example:
    ids = [[number, position, 7] for position in range(4)]
    return example_of(list(range(number, number + 10)), 5, ids, [[-0.1, -2.0, -3.0 - number]] * 4)


def same(left: Example, right: Example) -> bool:
    return left.first == right.first and all(
        np.array_equal(getattr(left, part), getattr(right, part)) for part in ("tokens", "token_ids", "log_probs")
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    data = Dataset(tmp_path, FACTS, most_bytes=MUCH)
    for number in range(5):
        assert data.append(example(number))
    again = Dataset(tmp_path, FACTS, most_bytes=MUCH)
    assert len(again) == 5
    assert all(same(again[number], example(number)) for number in range(5))


@pytest.mark.parametrize("lost", [1, 20, 40, 150])
def test_a_record_that_was_cut_off_is_dropped(tmp_path: Path, lost: int) -> None:
    data = Dataset(tmp_path, FACTS, most_bytes=MUCH)
    for number in range(3):
        data.append(example(number))
    with data.path.open("r+b") as file:
        file.truncate(data.path.stat().st_size - lost)
    again = Dataset(tmp_path, FACTS, most_bytes=MUCH)
    assert len(again) == 2
    assert again.append(example(9))
    last = Dataset(tmp_path, FACTS, most_bytes=MUCH)
    assert len(last) == 3
    assert all(same(last[index], example(number)) for index, number in enumerate((0, 1, 9)))


def test_bytes_that_changed_are_found(tmp_path: Path) -> None:
    data = Dataset(tmp_path, FACTS, most_bytes=MUCH)
    data.append(example(0))
    damaged = bytearray(data.path.read_bytes())
    damaged[60] ^= 1
    data.path.write_bytes(damaged)
    assert len(Dataset(tmp_path, FACTS, most_bytes=MUCH)) == 0


def test_it_is_bounded(tmp_path: Path) -> None:
    data = Dataset(tmp_path, FACTS, most_bytes=400)
    appended = [data.append(example(number)) for number in range(4)]
    assert appended == [True, True, False, False]
    assert data.path.stat().st_size <= 400
    assert len(Dataset(tmp_path, FACTS, most_bytes=400)) == 2


def test_another_collection_is_refused(tmp_path: Path) -> None:
    Dataset(tmp_path, FACTS, most_bytes=MUCH)
    with pytest.raises(DatasetError, match="top 3, now 4"):
        Dataset(tmp_path, FACTS | {"top": 4}, most_bytes=MUCH)


@pytest.mark.parametrize("content", ["", '{"to', "[]"])
def test_examples_of_an_unknown_origin_are_refused(content: str, tmp_path: Path) -> None:
    Dataset(tmp_path, FACTS, most_bytes=MUCH)
    (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(DatasetError, match=r"dataset\.json is damaged"):
        Dataset(tmp_path, FACTS, most_bytes=MUCH)


@pytest.mark.parametrize(("first", "positions"), [(0, 4), (8, 4), (1, 0)])
def test_parts_that_do_not_fit_are_refused(first: int, positions: int) -> None:
    with pytest.raises(ValueError, match=r"example must have|distributions"):
        example_of(list(range(10)), first, [[1, 2]] * positions, [[-1.0, -2.0]] * positions)
