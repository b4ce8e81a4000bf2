"""The statistics of the house, borrowed from SciPy and statsmodels and given the shapes that verdicts need.

Right/wrong outcomes are paired by item: ``gained`` items are wrong for the parent and right for the successor, ``lost``
items the other way round, ``n`` counts all of them.  Differences are always successor minus parent.

Clusters are question templates.  A paired difference has two standard errors, one that treats items as independent and
one that treats templates as the sampled unit; the larger is used.  Below MIN_CLUSTERS templates the second is too
unstable for its own t quantile, and the normal one is taken (it still widens the interval when templates disagree, on
which guards err).  Where an eval has so few templates that they are all there is (a sum, a difference), its own figures
take items as the unit (``sampled``): two templates cannot tell a spread.

Not covered: sequential looks at growing data (each claim is tested once), and more than two systems at a time.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

MIN_CLUSTERS = 8
BOOTSTRAP_RESAMPLES = 4000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A mean (difference) with its standard error and two-sided interval."""

    estimate: float
    stderr: float
    low: float
    high: float
    confidence: float
    n: int
    clusters: int


@dataclass(frozen=True)
class NonInferiority:
    """One-sided test of ``difference > -margin``. ``low`` is the one-sided lower bound at ``1 - alpha``."""

    estimate: float
    stderr: float
    low: float
    margin: float
    p: float
    held: bool


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion, two-sided. The whole [0, 1] when nothing was seen."""
    if n == 0:
        return 0.0, 1.0
    low, high = proportion_confint(successes, n, alpha=1 - confidence, method="wilson")
    return max(0.0, float(low)), min(1.0, float(high))


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact (conservative) interval of a proportion, two-sided."""
    low, high = proportion_confint(successes, n, alpha=1 - confidence, method="beta")
    return float(low) if successes else 0.0, float(high) if successes < n else 1.0


def sampled(clusters: Sequence[Hashable]) -> Sequence[Hashable] | None:
    """The clusters, if there are enough to be a sample of clusters; None where items are the unit."""
    return clusters if len(set(clusters)) >= MIN_CLUSTERS else None


def mean_with_stderr(
    values: Sequence[float], clusters: Sequence[Hashable] | None = None, confidence: float = 0.95
) -> Difference:
    """A mean with the larger of the item-level and the cluster-robust standard error, and its t or normal interval.

    Item level: ``s / sqrt(n)``.  Clusters (CR1): ``sqrt(G/(G-1) * sum_g (sum of residuals in g)^2) / n``, what
    statsmodels' OLS on a constant gives with ``cov_type="cluster"``.  Fewer than two values have none (nan).
    """
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    groups = _group_codes(clusters, n)
    count = int(groups.max()) + 1 if n else 0
    if n < 2:
        return Difference(float(array.mean()) if n else math.nan, math.nan, -math.inf, math.inf, confidence, n, count)
    mean = float(array.mean())
    residuals = array - mean
    stderr = float(array.std(ddof=1)) / math.sqrt(n)
    quantile_df: float = n - 1
    if 2 <= count < n:
        sums = np.bincount(groups, weights=residuals)
        clustered = math.sqrt(count / (count - 1) * float(np.square(sums).sum())) / n
        if clustered > stderr:
            stderr = clustered
            quantile_df = count - 1 if count >= MIN_CLUSTERS else math.inf
    reach = float(stats.t.ppf(0.5 + confidence / 2, quantile_df)) * stderr
    return Difference(mean, stderr, mean - reach, mean + reach, confidence, n, count)


def binomial_stderr(right: Sequence[bool], clusters: Sequence[Hashable] | None = None) -> float:
    """Standard error of an accuracy: the larger of ``sqrt(p(1-p)/n)`` and the clustered one.

    p is shrunk to (k+1)/(n+2), which keeps 0 of 40 from looking exact.
    """
    n = len(right)
    if n == 0:
        return math.nan
    shrunk = (sum(right) + 1) / (n + 2)
    plain = math.sqrt(shrunk * (1 - shrunk) / n)
    clustered = mean_with_stderr([float(value) for value in right], clusters).stderr
    return plain if math.isnan(clustered) else max(plain, clustered)


def paired_counts(before: Sequence[bool], after: Sequence[bool]) -> tuple[int, int]:
    """(gained, lost) of two right/wrong lists over the same items."""
    _same_length(before, after)
    gained = sum(1 for old, new in zip(before, after, strict=True) if new and not old)
    lost = sum(1 for old, new in zip(before, after, strict=True) if old and not new)
    return gained, lost


def mcnemar_exact(gained: ArrayLike, lost: ArrayLike) -> Any:
    """Two-sided exact McNemar p value: ``min(1, 2 P(X <= min(gained, lost)))`` with X ~ Binomial(gained + lost, 1/2).

    Takes numbers (returns a float) or arrays of them. Nothing discordant gives 1.
    """
    up, down = np.asarray(gained), np.asarray(lost)
    p = np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(up, down), up + down, 0.5))
    return float(p) if p.ndim == 0 else p


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given."""
    if not p_values:
        return []
    return [float(p) for p in multipletests(list(p_values), method="holm")[1]]


def paired_difference(
    before: Sequence[float],
    after: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Difference:
    """Mean of ``after - before`` over items with its clustered standard error and two-sided interval."""
    _same_length(before, after)
    change = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    return mean_with_stderr(list(change), clusters, confidence)


def paired_binary_difference(
    before: Sequence[bool],
    after: Sequence[bool],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Difference:
    """Difference of two paired accuracies: Tango's score interval, widened to the clustered one where that is wider.

    Unlike the normal interval it does not collapse to a point when nothing changed.
    """
    plain = paired_difference([float(x) for x in before], [float(x) for x in after], clusters, confidence)
    gained, lost = paired_counts(before, after)
    low, high = tango_interval(gained, lost, len(before), confidence)
    if math.isnan(plain.stderr):
        return Difference(plain.estimate, plain.stderr, low, high, confidence, plain.n, plain.clusters)
    low, high = max(-1.0, min(low, plain.low)), min(1.0, max(high, plain.high))
    return Difference(plain.estimate, plain.stderr, low, high, confidence, plain.n, plain.clusters)


def tango_z(gained: ArrayLike, lost: ArrayLike, n: ArrayLike, difference: ArrayLike) -> Floats:
    """Score statistic of H0: P(gained) - P(lost) = ``difference`` (Tango 1998, Statistics in Medicine 17:891).

    ``z = (b - c - n d) / sqrt(n (2 q + d - d^2))`` with b gained, c lost, q the maximum-likelihood P(lost) under H0:
    the larger root of ``2n q^2 + (-b - c + (2n - b + c) d) q - c d (1 - d) = 0``.
    """
    b, c, m, d = (np.asarray(x, dtype=np.float64) for x in (gained, lost, n, difference))
    half = -b - c + (2 * m - b + c) * d
    root = (np.sqrt(np.maximum(half**2 + 8 * m * c * d * (1 - d), 0.0)) - half) / (4 * m)
    variance = m * np.maximum(2 * root + d - d**2, 0.0)
    top = b - c - m * d
    with np.errstate(divide="ignore", invalid="ignore"):
        z = top / np.sqrt(variance)
    return np.where(variance > 0, z, np.where(np.abs(top) < 1e-12, 0.0, np.copysign(np.inf, top)))


def tango_interval(gained: int, lost: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided interval of the paired difference by inverting ``tango_z``."""
    if n == 0:
        return -1.0, 1.0
    quantile = float(stats.norm.ppf(0.5 + confidence / 2))
    middle = (gained - lost) / n

    def crossing(wanted: float, start: float, end: float) -> float:
        def gap(difference: float) -> float:
            return float(np.clip(tango_z(gained, lost, n, difference), -1e6, 1e6)) - wanted

        edge = end + (1e-12 if end < start else -1e-12)
        if (gap(middle) > 0) == (gap(edge) > 0):
            return end
        return float(optimize.brentq(gap, edge, middle, xtol=1e-10))

    low = -1.0 if middle <= -1 else crossing(quantile, middle, -1.0)
    high = 1.0 if middle >= 1 else crossing(-quantile, middle, 1.0)
    return low, high


def noninferiority(
    before: Sequence[bool],
    after: Sequence[bool],
    margin: float,
    clusters: Sequence[Hashable] | None = None,
    alpha: float = 0.05,
) -> NonInferiority:
    """Is the successor's accuracy less than ``margin`` below the parent's? One-sided, paired by item.

    p is the larger of Tango's score test of ``difference = -margin`` and, where templates widen the standard error, the
    t test ``(difference + margin) / clustered stderr``; the bound is the lower of the two that belong to them.
    """
    if not 0 < margin < 1:
        raise ValueError(f"margin must lie between 0 and 1, found {margin}")
    both = paired_binary_difference(before, after, clusters, confidence=1 - 2 * alpha)
    gained, lost = paired_counts(before, after)
    p = float(stats.norm.sf(tango_z(gained, lost, max(1, len(before)), -margin)))
    plain = paired_difference([float(x) for x in before], [float(x) for x in after], clusters, 1 - 2 * alpha)
    if plain.stderr > 0 and plain.low <= both.low:
        df = plain.clusters - 1 if MIN_CLUSTERS <= plain.clusters < plain.n else math.inf
        p = max(p, float(stats.t.sf((plain.estimate + margin) / plain.stderr, df)))
    held = bool(len(before)) and both.low > -margin
    return NonInferiority(both.estimate, both.stderr, both.low, margin, p, held)


def paired_bootstrap(
    before: Sequence[float],
    after: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Mean difference of paired scores with SciPy's BCa bootstrap over clusters (items when there are none)."""
    _same_length(before, after)
    change = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    groups = _group_codes(clusters, len(change))
    sums: Floats = np.bincount(groups, weights=change).astype(np.float64)
    sizes: Floats = np.bincount(groups).astype(np.float64)
    estimate, stderr, low, high = _bootstrap_ratio(sums, sizes, confidence, seed)
    return Difference(estimate, stderr, low, high, confidence, len(change), len(sums))


def perplexity_noninferiority(
    before: Sequence[tuple[float, int]],
    after: Sequence[tuple[float, int]],
    margin: float,
    alpha: float = 0.05,
    seed: int = 0,
) -> NonInferiority:
    """Has the log-perplexity on the same texts risen by less than ``margin`` (``log(1.1)`` allows 10 percent)?

    Each pair is (sum of -log p in nats, tokens) of one text.  The rise is ``sum(nll_after - nll_before) /
    sum(tokens)``; texts are the sampled unit.  Its upper bound is the higher of SciPy's BCa bootstrap over texts and
    the t interval of the linearised ratio, because a dozen texts are few for a bootstrap.  ``estimate`` and ``low`` are
    signed as everywhere here (successor minus parent, higher is better): they are minus the rise.
    """
    _same_length(before, after)
    tokens = np.asarray([count for _, count in before], dtype=np.float64)
    if len(tokens) < 2 or [count for _, count in after] != [count for _, count in before]:
        raise ValueError("perplexity is compared on at least two texts that both models cut into the same tokens")
    fall = np.asarray([old - new for (old, _), (new, _) in zip(before, after, strict=True)], dtype=np.float64)
    estimate, stderr, low, _ = _bootstrap_ratio(fall, tokens, 1 - 2 * alpha, seed)
    texts = len(tokens)
    residuals = fall - estimate * tokens
    linear = math.sqrt(texts / (texts - 1) * float(np.square(residuals).sum())) / float(tokens.sum())
    stderr = max(stderr, linear)
    low = min(low, estimate - float(stats.t.ppf(1 - alpha, texts - 1)) * linear)
    z = (estimate + margin) / stderr if stderr > 0 else math.copysign(math.inf, estimate + margin)
    return NonInferiority(estimate, stderr, low, margin, float(stats.t.sf(z, texts - 1)), low > -margin)


def power_mcnemar(n: int, discordance: float, difference: float, alpha: float = 0.05) -> float:
    """Exact power of the two-sided exact McNemar test on ``n`` items.

    ``discordance`` is P(gained) + P(lost), ``difference`` P(gained) - P(lost): sums over the number of discordant items
    and the outcomes of the binomial test.
    """
    _check_rates(discordance, difference)
    if n <= 0 or discordance == 0:
        return 0.0
    share = (discordance + difference) / 2 / discordance
    low, high = stats.binom.interval(1 - 1e-9, n, discordance)
    total = 0.0
    for count in range(int(low), int(high) + 1):
        # the rejection region of Binomial(count, 1/2): the lower tail up to `edge`, and its mirror image
        edge = int(stats.binom.ppf(alpha / 2, count, 0.5))
        while edge >= 0 and 2 * stats.binom.cdf(edge, count, 0.5) > alpha:
            edge -= 1
        if edge < 0:
            continue
        reject = stats.binom.cdf(edge, count, share) + stats.binom.sf(count - edge - 1, count, share)
        total += float(stats.binom.pmf(count, n, discordance) * reject)
    return min(1.0, total)


def sample_size_mcnemar(discordance: float, difference: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """Items for a two-sided McNemar test (Connor 1987, Biometrics 43:207).

    ``n = (z_{1-alpha/2} sqrt(psi) + z_power sqrt(psi - d^2))^2 / d^2`` with psi the discordance and d the difference.
    """
    _check_rates(discordance, difference)
    if difference == 0:
        raise ValueError("no number of items shows a difference of zero")
    z_alpha, z_power = float(stats.norm.ppf(1 - alpha / 2)), float(stats.norm.ppf(power))
    root = z_alpha * math.sqrt(discordance) + z_power * math.sqrt(discordance - difference**2)
    return math.ceil(root**2 / difference**2)


def power_noninferiority(
    n: int, discordance: float, margin: float, alpha: float = 0.05, difference: float = 0.0
) -> float:
    """Power of the one-sided test when the true difference is ``difference`` (0: nothing changed).

    ``Phi((d + margin) sqrt(n) / sqrt(psi - d^2) - z_{1-alpha})``, the normal approximation.
    """
    _check_rates(discordance, difference)
    if n <= 0:
        return 0.0
    spread = math.sqrt(max(discordance - difference**2, 1e-12))
    return float(stats.norm.cdf((difference + margin) * math.sqrt(n) / spread - stats.norm.ppf(1 - alpha)))


def sample_size_noninferiority(
    discordance: float, margin: float, alpha: float = 0.05, power: float = 0.8, difference: float = 0.0
) -> int:
    """Items for ``power_noninferiority`` to reach ``power``.

    ``(z_{1-alpha} + z_power)^2 (psi - d^2) / (d + margin)^2`` with psi the discordance and d the true difference.
    """
    _check_rates(discordance, difference)
    if difference + margin <= 0:
        raise ValueError(f"a true difference of {difference} is not within a margin of {margin}")
    z = float(stats.norm.ppf(1 - alpha) + stats.norm.ppf(power))
    return math.ceil(z**2 * (discordance - difference**2) / (difference + margin) ** 2)


def distinct_from_collisions(multiplicities: Sequence[int], confidence: float = 0.95) -> tuple[float, float]:
    """(estimate, lower bound) of a population's effective size, from how often each different item was drawn.

    ``draws (draws - 1) / 2 / C`` with C the number of equal pairs among the draws (the inverse of the chance that two
    draws are equal); the bound has C's one-sided Poisson limit in its place.  Where some items are likelier than others
    this falls short of their true number, which is the safe side.
    """
    draws = sum(multiplicities)
    pairs = draws * (draws - 1) / 2
    equal = sum(count * (count - 1) // 2 for count in multiplicities)
    upper = float(stats.chi2.ppf(confidence, 2 * (equal + 1))) / 2
    return pairs / equal if equal else math.inf, pairs / upper


def distinct_chao1(multiplicities: Sequence[int], confidence: float = 0.95) -> tuple[float, float]:
    """(estimate, lower bound) of how many different items there are, from how often each was drawn.

    Chao 1987 (Biometrics 43:783): ``S + f1^2 / (2 f2)`` with S seen, f1 seen once, f2 seen twice; a lower bound in
    expectation where some items are likelier than others.  The limit is the one-sided log-normal one of the same paper.
    Without an item seen twice nothing can be said: (inf, S).
    """
    seen = len(multiplicities)
    once, twice = sum(count == 1 for count in multiplicities), sum(count == 2 for count in multiplicities)
    if twice == 0:
        return math.inf if once else float(seen), float(seen)
    missing = once**2 / (2 * twice)
    if missing == 0:
        return float(seen), float(seen)
    odds = once / twice
    variance = twice * (odds**4 / 4 + odds**3 + odds**2 / 2)
    factor = math.exp(float(stats.norm.ppf(confidence)) * math.sqrt(math.log1p(variance / missing**2)))
    return seen + missing, seen + missing / factor


def _bootstrap_ratio(top: Floats, bottom: Floats, confidence: float, seed: int) -> tuple[float, float, float, float]:
    """(estimate, stderr, low, high) of ``sum(top) / sum(bottom)`` by SciPy's BCa bootstrap over the rows."""
    estimate = float(top.sum() / bottom.sum())
    if len(top) < 2 or np.ptp(top / bottom) == 0:  # BCa is undefined without spread
        return estimate, 0.0, estimate, estimate

    def ratio(x: Floats, y: Floats, axis: int = -1) -> Any:
        return x.sum(axis=axis) / y.sum(axis=axis)

    result = stats.bootstrap(
        (top, bottom), ratio, paired=True, vectorized=True, n_resamples=BOOTSTRAP_RESAMPLES,
        confidence_level=confidence, method="BCa", rng=np.random.default_rng(seed),
    )  # fmt: skip
    interval = result.confidence_interval
    return estimate, float(result.standard_error), float(interval.low), float(interval.high)


def _group_codes(clusters: Sequence[Hashable] | None, n: int) -> NDArray[np.int64]:
    """Clusters as 0, 1, 2 …; every item its own cluster when there are none."""
    if clusters is None:
        return np.arange(n, dtype=np.int64)
    if len(clusters) != n:
        raise ValueError(f"{len(clusters)} cluster labels for {n} values")
    codes: dict[Hashable, int] = {}
    return np.asarray([codes.setdefault(label, len(codes)) for label in clusters], dtype=np.int64)


def _same_length(before: Sequence[object], after: Sequence[object]) -> None:
    if len(before) != len(after):
        raise ValueError(f"paired lists differ in length: {len(before)} and {len(after)}")


def _check_rates(discordance: float, difference: float) -> None:
    if not 0 <= discordance <= 1 or abs(difference) > discordance:
        raise ValueError(f"need 0 <= |difference| <= discordance <= 1, found {difference} and {discordance}")
