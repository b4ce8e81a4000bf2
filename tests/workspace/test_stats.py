"""Answers come from closed forms, from statsmodels' own models, and from simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import optimize, special
from scipy import stats as scipy_stats
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from workspace import stats


def outcomes(both: int, gained: int, lost: int, neither: int) -> tuple[list[bool], list[bool]]:
    before = [True] * both + [False] * gained + [True] * lost + [False] * neither
    after = [True] * both + [True] * gained + [False] * lost + [False] * neither
    return before, after


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (5, 5), (53, 4), (13, 8), (3, 17), (92, 1)])
def test_mcnemar_equals_statsmodels_and_the_binomial_sum(gained: int, lost: int) -> None:
    found = stats.mcnemar_exact(gained, lost)
    if gained + lost:
        table = [[50, lost], [gained, 20]]
        assert found == pytest.approx(statsmodels_mcnemar(table, exact=True).pvalue)
    low = min(gained, lost)
    by_hand = 2 * sum(math.comb(gained + lost, k) for k in range(low + 1)) / 2 ** (gained + lost)
    assert found == pytest.approx(min(1.0, by_hand))


def test_mcnemar_takes_arrays() -> None:
    found = stats.mcnemar_exact(np.array([53, 13]), np.array([4, 8]))
    assert found == pytest.approx([stats.mcnemar_exact(53, 4), stats.mcnemar_exact(13, 8)])


def test_holm_by_hand() -> None:
    # sorted 0.01, 0.02, 0.04: times 3, 2, 1, then made monotone
    assert stats.holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert stats.holm([]) == []
    assert stats.holm([0.2]) == pytest.approx([0.2])


def test_clustered_stderr_equals_statsmodels_ols() -> None:
    rng = np.random.default_rng(11)
    clusters = np.repeat(np.arange(12), 9)
    values = rng.normal(size=12)[clusters] + rng.normal(size=len(clusters))
    fit = sm.OLS(values, np.ones_like(values)).fit(
        cov_type="cluster", cov_kwds={"groups": clusters, "use_correction": False}
    )
    found = stats.mean_with_stderr(list(values), [int(c) for c in clusters])
    assert found.stderr == pytest.approx(float(fit.bse[0]) * math.sqrt(12 / 11))
    assert found.clusters == 12
    reach = scipy_stats.t.ppf(0.975, 11) * found.stderr
    assert (found.low, found.high) == pytest.approx((values.mean() - reach, values.mean() + reach))


def test_two_templates_are_no_sample_of_templates() -> None:
    """Sums all gained, differences none: by the two of them nothing could be said, by 200 items a lot."""
    assert stats.sampled(["+", "-"] * 100) is None
    assert stats.sampled(list(range(stats.MIN_CLUSTERS)) * 3) is not None
    before, after, kind = [False] * 200, [True, False] * 100, ["+", "-"] * 100
    assert stats.paired_binary_difference(before, after, kind).low < 0
    assert stats.paired_binary_difference(before, after, stats.sampled(kind)).low > 0.4


def test_without_clusters_the_interval_is_students() -> None:
    values = [0.1, 0.4, 0.35, 0.8, 0.2]
    low, high = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = stats.mean_with_stderr(values)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_a_mean_of_nothing_or_of_one_has_no_stderr() -> None:
    assert math.isnan(stats.mean_with_stderr([]).estimate)
    assert math.isnan(stats.mean_with_stderr([1.0]).stderr)


def test_binomial_stderr_does_not_vanish_at_the_floor() -> None:
    assert stats.binomial_stderr([False] * 40) == pytest.approx(math.sqrt((1 / 42) * (41 / 42) / 40))


def test_wilson_by_its_formula() -> None:
    z = 1.959963984540054
    for k, n in [(0, 10), (3, 40), (40, 40)]:
        centre = (k + z * z / 2) / (n + z * z)
        reach = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
        assert stats.wilson(k, n) == pytest.approx((max(0, centre - reach), min(1, centre + reach)), abs=1e-12)
    assert stats.wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("gained", "lost", "n"), [(8, 5, 60), (0, 0, 40), (0, 7, 90), (12, 0, 50)])
@pytest.mark.parametrize("difference", [-0.1, -0.05, 0.02, 0.2])
def test_tango_statistic_equals_a_numerical_fit(gained: int, lost: int, n: int, difference: float) -> None:
    """The constrained likelihood is maximised numerically and the score statistic built from it."""

    def minus_log_likelihood(q: float) -> float:
        p_gained, p_same = q + difference, 1 - 2 * q - difference
        terms = special.xlogy(gained, p_gained) + special.xlogy(lost, q) + special.xlogy(n - gained - lost, p_same)
        return -float(terms)

    low, high = max(0.0, -difference), (1 - difference) / 2
    fit = optimize.minimize_scalar(minus_log_likelihood, bounds=(low, high), method="bounded", options={"xatol": 1e-12})
    variance = n * (2 * fit.x + difference - difference**2)
    expected = (gained - lost - n * difference) / math.sqrt(variance)
    assert float(stats.tango_z(gained, lost, n, difference)) == pytest.approx(expected, rel=2e-3)


def test_tango_interval_inverts_the_test_and_keeps_width_without_discordance() -> None:
    low, high = stats.tango_interval(9, 4, 80)
    assert abs(float(stats.tango_z(9, 4, 80, low))) == pytest.approx(1.959964, rel=1e-5)
    assert abs(float(stats.tango_z(9, 4, 80, high))) == pytest.approx(1.959964, rel=1e-5)
    low, high = stats.tango_interval(0, 0, 40)
    z2 = 1.959963984540054**2  # nothing discordant: |d| = z^2 / (n + z^2)
    assert (low, high) == pytest.approx((-z2 / (40 + z2), z2 / (40 + z2)))
    assert stats.tango_interval(20, 0, 20)[1] == 1.0
    assert stats.tango_interval(0, 20, 20)[0] == -1.0
    assert stats.tango_interval(0, 0, 0) == (-1.0, 1.0)


def test_forty_unchanged_items_do_not_prove_a_five_point_guard() -> None:
    before, after = outcomes(30, 0, 0, 10)
    assert not stats.noninferiority(before, after, 0.05).held
    before, after = outcomes(120, 0, 0, 40)
    assert stats.noninferiority(before, after, 0.05).held


def test_noninferiority_agrees_with_the_normal_formula_on_many_items() -> None:
    before, after = outcomes(700, 90, 100, 110)
    found = stats.noninferiority(before, after, 0.05)
    spread = math.sqrt((0.19 - 0.01**2) / 1000)
    assert found.estimate == pytest.approx(-0.01)
    assert found.stderr == pytest.approx(spread, rel=2e-3)
    assert found.low == pytest.approx(-0.01 - 1.645 * spread, abs=8e-4)
    assert found.p == pytest.approx(scipy_stats.norm.sf(0.04 / spread), rel=0.15)
    assert found.held


def test_templates_that_disagree_widen_a_guard() -> None:
    before, after = outcomes(900, 40, 50, 10)
    alone = stats.noninferiority(before, after, 0.05)
    lumped = ["rest"] * 450 + ["other"] * 450 + ["up"] * 40 + ["down"] * 50 + ["none"] * 10
    clustered = stats.noninferiority(before, after, 0.05, clusters=lumped)
    assert clustered.low < alone.low
    assert clustered.p > alone.p
    assert (clustered.p < 0.05) == clustered.held


def test_noninferiority_at_the_margin_passes_no_oftener_than_alpha() -> None:
    """Successors that are exactly five points worse: simulated with the statistic that the test uses."""
    rng = np.random.default_rng(5)
    counts = rng.multinomial(300, [0.08, 0.13, 0.79], size=20_000)
    passed = scipy_stats.norm.sf(stats.tango_z(counts[:, 0], counts[:, 1], 300, -0.05)) < 0.05
    assert stats.clopper_pearson(int(passed.sum()), len(passed), 0.99)[0] < 0.056


def test_noninferiority_needs_a_margin() -> None:
    with pytest.raises(ValueError, match="margin"):
        stats.noninferiority([True], [True], 0.0)


def test_sample_sizes_that_are_known() -> None:
    # 80% power, two-sided 5%, 20% discordant
    assert [stats.sample_size_mcnemar(0.2, d) for d in (0.10, 0.05, 0.03)] == [155, 626, 1742]
    assert stats.sample_size_noninferiority(0.2, 0.05) == 495
    assert stats.sample_size_noninferiority(0.2, 0.08) == 194
    with pytest.raises(ValueError, match="zero"):
        stats.sample_size_mcnemar(0.2, 0.0)


def test_power_of_mcnemar_by_simulation() -> None:
    rng = np.random.default_rng(3)
    counts = rng.multinomial(155, [0.15, 0.05, 0.80], size=20_000)
    simulated = float(np.mean(stats.mcnemar_exact(counts[:, 0], counts[:, 1]) <= 0.05))
    assert stats.power_mcnemar(155, 0.2, 0.1) == pytest.approx(simulated, abs=0.012)
    assert stats.power_mcnemar(155, 0.2, 0.0) <= 0.05
    assert stats.power_mcnemar(0, 0.2, 0.1) == 0.0
    assert stats.power_mcnemar(200, 0.3, 0.3) > 0.999


def test_power_of_noninferiority_by_simulation() -> None:
    rng = np.random.default_rng(4)
    counts = rng.multinomial(495, [0.1, 0.1, 0.8], size=20_000)
    simulated = float(np.mean(stats.tango_z(counts[:, 0], counts[:, 1], 495, -0.05) > 1.6449))
    assert stats.power_noninferiority(495, 0.2, 0.05) == pytest.approx(simulated, abs=0.02)


def test_bootstrap_interval_is_close_to_students_on_many_clusters() -> None:
    rng = np.random.default_rng(8)
    before = rng.uniform(size=400)
    after = before + rng.normal(0.05, 0.2, size=400)
    found = stats.paired_bootstrap(list(before), list(after), list(range(400)), seed=1)
    low, high = scipy_stats.ttest_1samp(after - before, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.004)
    assert found == stats.paired_bootstrap(list(before), list(after), list(range(400)), seed=1)


def test_perplexity_guard() -> None:
    rng = np.random.default_rng(9)
    before = [(float(nll), 200) for nll in rng.normal(560, 40, size=24)]

    def shifted(rise: float) -> list[tuple[float, int]]:
        noise = rng.normal(0, 0.01, size=24)
        return [(nll + count * (rise + step), count) for (nll, count), step in zip(before, noise, strict=True)]

    margin = math.log(1.10)
    held = stats.perplexity_noninferiority(before, shifted(0.05), margin)
    assert held.held
    assert held.estimate == pytest.approx(-0.05, abs=0.01)
    assert not stats.perplexity_noninferiority(before, shifted(0.12), margin).held
    same = stats.perplexity_noninferiority(before, before, margin)
    assert same.held
    assert (same.estimate, same.p) == (0, 0)
    with pytest.raises(ValueError, match="same tokens"):
        stats.perplexity_noninferiority(before, [(nll, 3) for nll, _ in before], margin)


def test_distinct_items_from_collisions() -> None:
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(200):
        _, counts = np.unique(rng.integers(0, 12_000, size=3000), return_counts=True)
        estimate, low = stats.distinct_from_collisions([int(c) for c in counts])
        assert estimate == pytest.approx(12_000, rel=0.25)
        covered += low <= 12_000
    assert covered >= 180
    estimate, low = stats.distinct_from_collisions([1] * 2000)
    assert math.isinf(estimate)
    assert low == pytest.approx(2000 * 1999 / 2 / -math.log(0.05))


def test_distinct_items_by_chao() -> None:
    """A population in which a third of the items is twice as likely as the rest."""
    rng = np.random.default_rng(12)
    weights = np.array([2.0] * 4000 + [1.0] * 8000)
    covered = 0
    for _ in range(100):
        drawn = rng.choice(12_000, size=6000, p=weights / weights.sum())
        _, counts = np.unique(drawn, return_counts=True)
        estimate, low = stats.distinct_chao1([int(c) for c in counts])
        assert 0.85 * 12_000 < estimate < 1.1 * 12_000
        assert low < estimate
        covered += low <= 12_000
    assert covered >= 95
    by_hand = 3 + 2 / math.exp(1.6448536 * math.sqrt(math.log(1 + 14 / 2**2)))  # f1 = 2, f2 = 1: variance 4 + 8 + 2
    assert stats.distinct_chao1([1, 1, 2]) == pytest.approx((5.0, by_hand))
    assert stats.distinct_chao1([3, 4]) == (2.0, 2.0)


def test_pairs_must_pair() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        stats.paired_counts([True], [])
    with pytest.raises(ValueError, match="cluster labels"):
        stats.mean_with_stderr([1.0, 2.0], ["a"])
    with pytest.raises(ValueError, match="discordance"):
        stats.power_mcnemar(10, 0.1, 0.2)
