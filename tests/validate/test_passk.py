"""pass@k against its definition, and intervals against published values and each other."""

import itertools

import pytest
from codegen_batch.pipeline.validate.passk import bootstrap, interval, mean_pass_at_k, pass_at_k, wilson


@pytest.mark.parametrize("n", range(1, 8))
@pytest.mark.parametrize("k", range(1, 8))
def test_pass_at_k_counts_the_draws_that_hold_a_pass(n: int, k: int) -> None:
    for c in range(n + 1):
        draws = list(itertools.combinations([1] * c + [0] * (n - c), k))
        expected = sum(any(d) for d in draws) / len(draws) if draws else None
        assert pass_at_k(n, c, k) == (pytest.approx(expected) if draws else None)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 6, 1), (5, -1, 1), (5, 1, 0)], ids=["c over n", "negative c", "k of 0"])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="no sense"):
        pass_at_k(n, c, k)


def test_many_samples_are_exact() -> None:
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)


def test_mean_is_over_tasks_not_samples() -> None:
    assert mean_pass_at_k([(1, 1), (9, 0)], 1) == 0.5


@pytest.mark.parametrize("counts", [[], [(3, 3)]], ids=["no task", "too few samples"])
def test_undefined_is_none_not_one(counts: list[tuple[int, int]]) -> None:
    assert mean_pass_at_k(counts, 10) is None
    assert interval(counts, 10) is None


def test_tasks_with_too_few_samples_are_left_out() -> None:
    assert mean_pass_at_k([(2, 0), (1, 1)], 2) == 0.0


@pytest.mark.parametrize(
    ("passed", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (29, 29, 0.8830, 1.0)],
    ids=["81 of 263", "15 of 148", "none", "all"],
)
def test_wilson_against_newcombe_1998(passed: int, trials: int, low: float, high: float) -> None:
    assert wilson(passed, trials) == pytest.approx((low, high), abs=5e-5)


def test_one_sample_a_task_takes_wilson() -> None:
    assert interval([(1, 1)] * 15 + [(1, 0)] * 133, 1) == wilson(15, 148)


def test_bootstrap_agrees_with_the_normal_interval() -> None:
    values = [i / 99 for i in range(100)]
    low, high = bootstrap(values)
    deviation = (sum((v - 0.5) ** 2 for v in values) / 100) ** 0.5 / 10
    assert (low, high) == pytest.approx((0.5 - 1.96 * deviation, 0.5 + 1.96 * deviation), abs=0.006)


def test_bootstrap_repeats_and_takes_its_seed() -> None:
    counts = [(4, c) for c in (0, 1, 2, 3, 4, 4, 0, 1)]
    assert interval(counts, 2, seed=1) == interval(counts, 2, seed=1) != interval(counts, 2, seed=2)
