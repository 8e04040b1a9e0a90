"""The sizes that steps are padded to."""

import pytest

from speculative_engine.model.cuda.step_buckets import Bucket, StepBuckets


def test_the_smallest_bucket_that_holds_a_step() -> None:
    buckets = StepBuckets(rows=(1, 4), keys=(64, 256))
    assert buckets.bucket(1, 0) == Bucket(1, 64)
    assert buckets.bucket(2, 64) == Bucket(4, 64)
    assert buckets.bucket(4, 65) == Bucket(4, 256)
    assert buckets.bucket(5, 1) is buckets.bucket(1, 257) is None
    assert list(buckets) == [Bucket(4, 256), Bucket(4, 64), Bucket(1, 256), Bucket(1, 64)]


def test_what_no_bucket_holds_is_rounded_up() -> None:
    assert StepBuckets.rounded(65, 0) == Bucket(128, 1024)
    assert StepBuckets.rounded(256, 1025) == Bucket(256, 2048)


@pytest.mark.parametrize(("slots", "keys"), [(100, (1024,)), (1025, (1024, 4096)), (10**6, (1024, 4096, 16384, 65536))])
def test_a_small_cache_needs_few(slots: int, keys: tuple[int, ...]) -> None:
    assert StepBuckets.within(slots).keys == keys


@pytest.mark.parametrize("sizes", [(), (0, 1), (2, 1), (1, 1)])
def test_sizes_have_to_ascend(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rows of buckets"):
        StepBuckets(rows=sizes)
    with pytest.raises(ValueError, match="keys of buckets"):
        StepBuckets(keys=sizes)
