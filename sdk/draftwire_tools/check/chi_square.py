"""The chi-square test of counts of independent draws, each from a distribution of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEAST_EXPECTED = 5.0
"""Least expected count of a category; less likely categories are joined with the next one."""
_EPSILON = 1e-12


def tail(statistic: float, degrees: int) -> float:
    """Returns the probability that a chi-square variable with these degrees of freedom exceeds the statistic."""
    if degrees < 1:
        return 1.0
    return _upper_gamma(degrees / 2, max(statistic, 0.0) / 2)


def chi_square(draws: Sequence[tuple[int, Sequence[float]]]) -> tuple[float, int]:
    """Returns the chi-square statistic of draws and its degrees of freedom.

    The draws may follow different distributions: the statistic is (O - E) V^-1 (O - E), with the counts O of all
    categories but one, their expectation E and their covariance V, sums over the draws.

    Args:
        draws: for each draw the category drawn and the probabilities of all categories, which sum to 1.
    """
    if not draws:
        return 0.0, 0
    groups = _groups([sum(column) for column in zip(*(p for _, p in draws), strict=True)])
    size = max(groups) + 1
    if size < 2:
        return 0.0, 0
    observed, expected = [0.0] * size, [0.0] * size
    covariance = [[0.0] * size for _ in range(size)]
    for drawn, probabilities in draws:
        joined = [0.0] * size
        for group, probability in zip(groups, probabilities, strict=True):
            joined[group] += probability
        observed[groups[drawn]] += 1
        for i, p in enumerate(joined):
            expected[i] += p
            covariance[i][i] += p
            for j, q in enumerate(joined):
                covariance[i][j] -= p * q
    last = size - 1  # determined by the others
    excess = [observed[i] - expected[i] for i in range(last)]
    solved = _solve([row[:last] for row in covariance[:last]], excess)
    return sum(a * b for a, b in zip(excess, solved, strict=True)), last


def _groups(expected: Sequence[float]) -> list[int]:
    """Returns a group for each category, so that neighbours with small expected counts are in one."""
    groups, group, held = [], 0, 0.0
    for count in expected:
        if held >= _LEAST_EXPECTED:
            group, held = group + 1, 0.0
        groups.append(group)
        held += count
    if held < _LEAST_EXPECTED and group:
        groups = [min(each, group - 1) for each in groups]
    return groups


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Solves a positive definite system by elimination."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(rows[row][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < _EPSILON:  # a category that is certain or impossible in every draw
            rows[i][i] = 1.0
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            for column in range(i, size + 1):
                rows[j][column] -= factor * rows[i][column]
    solved = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * solved[j] for j in range(i + 1, size))
        solved[i] = (rows[i][size] - rest) / rows[i][i]
    return solved


def _upper_gamma(a: float, x: float) -> float:
    """Returns the regularised upper incomplete gamma function Q(a, x), by its series or its continued fraction."""
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        number = a
        while abs(term) > abs(total) * 1e-15:
            number += 1
            term *= x / number
            total += term
        return max(0.0, 1 - total * scale)
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    result = d
    for i in range(1, 10_000):
        factor = -i * (i - a)
        b += 2
        d = 1 / (_nonzero(factor * d + b, tiny))
        c = _nonzero(b + factor / c, tiny)
        step = d * c
        result *= step
        if abs(step - 1) < 1e-15:
            break
    return min(1.0, result * scale)


def _nonzero(value: float, least: float) -> float:
    return value if abs(value) >= least else least
