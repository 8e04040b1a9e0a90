"""The chi-square test: known values, uniform p-values for faultless draws, small ones for others."""

import random

import pytest

from draftwire_tools.check.chi_square import chi_square, tail


@pytest.mark.parametrize(
    ("statistic", "degrees", "probability"),
    [
        (3.841458820694124, 1, 0.05),
        (18.307038053275146, 10, 0.05),
        (2.0, 2, 0.36787944117144233),
        (50.0, 10, 2.6690834249044956e-07),
        (0.0, 5, 1.0),
        (0.5, 3, 0.9188914116546244),
        (150.0, 100, 0.0009039320423540184),
        (7.0, 0, 1.0),
    ],
)
def test_known_tails(statistic: float, degrees: int, probability: float) -> None:
    assert tail(statistic, degrees) == pytest.approx(probability, rel=1e-6)


def draws(rng: random.Random, count: int, bias: float = 0.0) -> list[tuple[int, list[float]]]:
    """Returns draws from distributions of their own; `bias` makes the first category that much likelier."""
    made = []
    for _ in range(count):
        weights = [rng.random() ** 3 for _ in range(12)]
        probabilities = [weight / sum(weights) for weight in weights]
        drawn = 0 if rng.random() < bias else rng.choices(range(12), probabilities)[0]
        made.append((drawn, probabilities))
    return made


def test_p_values_of_faultless_draws_are_uniform() -> None:
    rng = random.Random(5)
    values = sorted(tail(*chi_square(draws(rng, 200))) for _ in range(100))
    furthest = max(abs(value - (index + 0.5) / 100) for index, value in enumerate(values))
    assert furthest < 0.15  # Kolmogorov-Smirnov, 1 %: 0.163


def test_a_bias_is_found() -> None:
    assert tail(*chi_square(draws(random.Random(5), 2000, bias=0.1))) < 1e-6


def test_categories_that_hardly_occur_are_joined() -> None:
    probabilities = [0.5, 0.49, 0.005, 0.005]
    statistic, degrees = chi_square([(index % 2, probabilities) for index in range(100)])
    assert degrees == 1
    assert statistic < 5


def test_too_few_draws_say_nothing() -> None:
    assert chi_square([]) == (0.0, 0)
    assert chi_square([(0, [0.5, 0.5])]) == (0.0, 0)


def test_certain_categories() -> None:
    statistic, degrees = chi_square([(0, [1.0, 0.0])] * 50)
    assert tail(statistic, degrees) == 1.0
