import pytest

from draftwire_core.runtime.observability.histogram import Histogram


def test_a_value_counts_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram([1, 2, 4])
    for value in (0, 1, 1.5, 2, 4, 4.5, 100):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("4.0", 5), ("+Inf", 7)]
    assert (histogram.count, histogram.sum) == (7, 113.0)


def test_one_is_added_to_another() -> None:
    one, other = Histogram([1, 2]), Histogram([1, 2])
    one.observe(1)
    other.observe(2)
    other.observe(3)
    one.add(other)
    assert one.buckets() == [("1.0", 1), ("2.0", 2), ("+Inf", 3)]
    assert one.sum == 6
    assert other.count == 2
    with pytest.raises(ValueError, match="different edges"):
        one.add(Histogram([1, 3]))


@pytest.mark.parametrize("edges", [[], [2, 1], [1, 1]])
def test_edges_ascend(edges: list[float]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Histogram(edges)
