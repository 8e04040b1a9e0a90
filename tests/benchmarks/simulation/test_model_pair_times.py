"""Calibrations are read back as written, and errors in one name the field."""

import json
from pathlib import Path

import pytest

from benchmarks.simulation.fleet.model_pair_times import Around, ModelPairTimes, gpu_like, read, write
from benchmarks.simulation.simulated_setting import Curve

TEXTS = [[(0, [-0.1, -3.0]), (None, [-0.5])], [(1, [-0.7, -0.8])]]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    measured = ModelPairTimes(
        "pair",
        "measured",
        Curve((1, 8), (0.01, 0.02)),
        Curve((1,), (0.001,)),
        TEXTS,
        Around(0.001, 0.0001),
        Around(0.0002),
        0.0003,
        0.0004,
    )
    for pair in (measured, gpu_like()):
        write(pair, tmp_path / "pair.json")
        assert read(tmp_path / "pair.json") == pair


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"line_seconds": -1.0}, "line: -1.0 is not a time"),
        ({"line_seconds": "fast"}, "line_seconds: 'fast' is no number"),
        ({"target_seconds": {"1": 0}}, "target_seconds: .*positive"),
        ({"target_seconds": 3}, "target_seconds: "),
        ({"draft_around": {"step": -1, "sequence": 0}}, "draft_around: step: -1"),
        ({"draft_around": {"steps": 1}}, "draft_around: .*steps"),
        ({"agreement": {"by_rank": [2]}}, "agreement: by_rank"),
        ({"texts": []}, "either agreement or texts"),
        ({"speed": 1}, "speed: unknown"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "pair.json"
    write(gpu_like(), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        read(path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pair.json"
    write(gpu_like(), path)
    content = json.loads(path.read_text())
    del content["draft_seconds"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="draft_seconds: missing"):
        read(path)


def test_texts_follow_one_another_each_as_often_as_the_others() -> None:
    pair = ModelPairTimes("pair", "assumed", Curve((1,), (0.01,)), Curve((1,), (0.001,)), TEXTS)
    places = pair.places(9, "seed")
    assert len(places) == 9
    assert sum(place == TEXTS[1][0] for place in places) == 3
