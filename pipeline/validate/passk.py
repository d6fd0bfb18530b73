"""pass@k and its uncertainty.

`counts` is one (n, c) a task: samples of that task that were judged, and those that passed. Samples whose verdict does
not count (records.Verdict.counts) are left out before.
"""

import math
from collections.abc import Sequence

RESAMPLES = 2000
Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """The unbiased estimate 1 - C(n-c, k) / C(n, k) that one of k samples passes (Chen et al. 2021).

    None where n < k: it is not defined. Raises ValueError for counts that cannot be.
    """
    if k < 1 or not 0 <= c <= n:
        raise ValueError(f"pass@{k} of {c} passed among {n} samples makes no sense")
    if n < k:
        return None
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float | None:
    """The mean over tasks with n >= k; None if there is none. Tasks with fewer samples are for the caller to report."""
    values = _values(counts, k)
    return math.fsum(values) / len(values) if values else None


def interval(counts: Sequence[tuple[int, int]], k: int, seed: int = 0) -> tuple[float, float] | None:
    """A 95 % interval of `mean_pass_at_k`; None where that is None.

    Wilson's where each task has one sample, so that tasks are plain trials; else a percentile bootstrap over tasks.
    """
    used = [(n, c) for n, c in counts if n >= k]
    if not used:
        return None
    if all(n == 1 for n, _ in used):
        return wilson(sum(c for _, c in used), len(used))
    return bootstrap(_values(used, k), seed)


def wilson(passed: int, trials: int) -> tuple[float, float]:
    """Wilson's score interval of a share, 95 % (Wilson 1927). Raises ValueError without trials."""
    if not 0 <= passed <= trials or not trials:
        raise ValueError(f"{passed} of {trials} is no share")
    share, z2 = passed / trials, Z95 * Z95
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    low = 0.0 if passed == 0 else max(0.0, centre - half)  # exact at the ends, whatever rounding does
    high = 1.0 if passed == trials else min(1.0, centre + half)
    return low, high


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles of the mean of `values` over RESAMPLES resamples (Efron 1979). Repeats by seed."""
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means = [generator.choice(data, size=data.size).mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _values(counts: Sequence[tuple[int, int]], k: int) -> list[float]:
    return [value for n, c in counts if (value := pass_at_k(n, c, k)) is not None]
