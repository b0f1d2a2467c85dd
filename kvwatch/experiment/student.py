"""Student's t distribution: what the standard library lacks of it. `df` are degrees of freedom, 1 or more."""

from __future__ import annotations

from math import exp, inf, lgamma, log, log1p

_STEPS, _TINY, _NEAR = 300, 1e-300, 1e-15


def two_sided(t: float, df: float) -> float:
    """The chance of a value at least as far from 0 as `t`."""
    return _beta(df / (df + t * t), df / 2, 0.5)


def critical(chance: float, df: float) -> float:
    """The t beyond which, on both sides together, values lie with this chance (0-1)."""
    low, high = 0.0, 1.0
    while two_sided(high, df) > chance:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > chance else (low, middle)
    return high


def welch(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Degrees of freedom of a difference between two numbers, each with its standard error and its own degrees
    (Welch and Satterthwaite)."""
    spread = sum(error**4 / df for error, df in (first, second))
    return (first[0] ** 2 + second[0] ** 2) ** 2 / spread if spread > 0 else inf


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta(1.0 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for part in (even, odd):
            d = 1.0 / _away(1.0 + part * d)
            c = _away(1.0 + part / c)
            found *= c * d
        if abs(c * d - 1.0) < _NEAR:
            break
    return front * found


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
