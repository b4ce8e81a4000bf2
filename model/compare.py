"""The gate: is the successor better than its parent, and is nothing else broken?

Same items for both models, paired by key.  Integrity comes before statistics.  Then one claim per target (exact
McNemar, Holm over the night's targets), one claim for all guards pooled over their kinds (one-sided, against a margin),
one for prose (log-perplexity by text, against a margin).

    promote       a target better, every guard non-inferior, at least four kinds of guard count, integrity clean
    reject        a target or a guard worse, or an integrity check failed
    inconclusive  anything else: the parent stays

A kind of guard counts where the parent's Wilson lower bound exceeds chance by more than the margin: from there a fall
to chance would be seen.  "Worse" is a guard that is not non-inferior and whose whole interval lies below zero, or one
single kind whose interval (Bonferroni over kinds) lies below the margin, which a pool could hide.

Not covered: several looks at growing data; a hold-out that was read too often fails its integrity check instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from model.evals import ItemResult
from workspace import stats

Outcome = Literal["better", "non-inferior", "worse", "inconclusive"]
VerdictName = Literal["promote", "reject", "inconclusive"]
INTEGRITY_CHECKS = ("contamination", "identity", "lineage", "holdout-reads")
GUARD_POOL = "guards"
PROSE = "prose-perplexity"
MAX_RELATIVE_DISTANCE = 0.5  # unrelated weights of equal norm are 1.4 apart


@dataclass(frozen=True)
class GateSettings:
    """``prose_margin`` is of log-perplexity in nats per token: 0.05 allows perplexity to rise by 5 percent.

    ``planned_effect`` is the gain of a target that its power is stated for.
    """

    alpha: float = 0.05
    margin: float = 0.05
    prose_margin: float = 0.05
    min_guard_kinds: int = 4
    power: float = 0.8
    planned_effect: float = 0.1


@dataclass(frozen=True)
class PairedEval:
    """One eval's outcomes of both models on the same items."""

    eval: str
    kind: str
    role: Literal["target", "guard"]
    chance: float
    parent: Sequence[ItemResult]
    successor: Sequence[ItemResult]


@dataclass(frozen=True)
class PairedProse:
    """(sum of -log p in nats, tokens) of each text, for both models."""

    parent: Sequence[tuple[float, int]]
    successor: Sequence[tuple[float, int]]


@dataclass(frozen=True)
class IntegrityCheck:
    check: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class GuardKind:
    """One kind of guard and whether it counts; ``low`` is the parent's Wilson lower bound."""

    kind: str
    evals: list[str]
    n: int
    parent: float
    successor: float
    chance: float
    low: float
    counts: bool
    worse: bool
    reason: str


@dataclass(frozen=True)
class Claim:
    """One line of ``claims`` in ``eval compare --json``. ``bound`` is a guard's one-sided limit against its margin.

    For ``prose-perplexity`` parent, successor, difference and interval are log-perplexities (nats per token, lower is
    better); for all others they are accuracies.
    """

    eval: str
    role: Literal["target", "guard"]
    n: int
    parent: float
    successor: float
    difference: float
    ci95: tuple[float, float]
    test: str
    p: float
    margin: float | None
    power: float
    outcome: Outcome
    p_holm: float | None = None
    gained: int | None = None
    lost: int | None = None
    bound: float | None = None

    def to_json(self) -> dict[str, Any]:
        row = {key: value for key, value in asdict(self).items() if value is not None or key == "margin"}
        row["ci95"] = [_finite(limit) for limit in self.ci95]
        return row


@dataclass(frozen=True)
class Comparison:
    """The verdict with everything that it rests on. ``explanation`` says what it would have taken to pass."""

    parent: str
    successor: str
    verdict: VerdictName
    alpha: float
    claims: list[Claim]
    integrity: list[IntegrityCheck]
    guard_kinds: list[GuardKind]
    explanation: list[str]

    def to_json(self) -> dict[str, Any]:
        return {
            "parent": self.parent, "successor": self.successor, "verdict": self.verdict, "alpha": self.alpha,
            "claims": [claim.to_json() for claim in self.claims],
            "integrity": [asdict(check) for check in self.integrity],
            "guard_kinds": [asdict(kind) for kind in self.guard_kinds],
            "explanation": self.explanation,
        }  # fmt: skip


def plan_items(margin: float, discordance: float = 0.2, power: float = 0.8, alpha: float = 0.05) -> int:
    """Guard items that hold a margin with ``power`` when nothing changed."""
    return stats.sample_size_noninferiority(discordance, margin, alpha, power)


def plan_target_items(effect: float, discordance: float = 0.2, power: float = 0.8, alpha: float = 0.05) -> int:
    """Target items that show a gain of ``effect`` with ``power``."""
    return stats.sample_size_mcnemar(max(discordance, effect), effect, alpha, power)


def compare(
    parent: str,
    successor: str,
    pairs: Sequence[PairedEval],
    prose: PairedProse | None,
    integrity: Sequence[IntegrityCheck],
    settings: GateSettings | None = None,
) -> Comparison:
    """Judge one successor. ValueError when the two models did not answer the same items."""
    gate = settings or GateSettings()
    pairs = [_aligned(pair) for pair in pairs]
    claims = _target_claims([pair for pair in pairs if pair.role == "target"], gate)
    kinds = guard_kinds([pair for pair in pairs if pair.role == "guard"], gate)
    counting = {kind.kind for kind in kinds if kind.counts}
    pool = [pair for pair in pairs if pair.role == "guard" and pair.kind in counting]
    if pool:
        claims.append(_guard_claim(pool, any(kind.worse for kind in kinds), gate))
    if prose is not None and prose.parent:
        claims.append(_prose_claim(prose, gate))
    missing = [name for name in INTEGRITY_CHECKS if name not in {check.check for check in integrity}]
    verdict = _verdict(claims, integrity, missing, len(counting), gate)
    explanation = _explain(claims, integrity, missing, kinds, gate)
    return Comparison(parent, successor, verdict, gate.alpha, claims, list(integrity), kinds, explanation)


def guard_kinds(guards: Sequence[PairedEval], gate: GateSettings) -> list[GuardKind]:
    """Pool guards of one kind and say which kinds count, with the reason."""
    kinds: dict[str, list[PairedEval]] = {}
    for pair in guards:
        kinds.setdefault(pair.kind, []).append(pair)
    return [_guard_kind(kind, members, len(kinds), gate) for kind, members in sorted(kinds.items())]


def _guard_kind(kind: str, members: Sequence[PairedEval], of_kinds: int, gate: GateSettings) -> GuardKind:
    before, after, clusters = _pooled(members)
    n = len(before)
    right = sum(before)
    low = stats.wilson(right, n)[0]
    chance = max(member.chance for member in members)
    counts = n > 0 and low > chance + gate.margin
    share = right / n if n else 0.0
    reason = (
        f"parent {share:.0%} right (at least {low:.0%}), chance {chance:.0%}"
        if counts
        else f"does not count: parent {share:.0%} right of {n}, at least {low:.0%}; "
        f"needs more than chance {chance:.0%} plus the margin {gate.margin:.0%}"
    )
    high = stats.paired_binary_difference(before, after, clusters, 1 - 2 * gate.alpha / of_kinds).high
    worse = counts and high < -gate.margin
    if worse:
        reason += f"; worse by itself, the interval ends at {high:+.1%}"
    names = [member.eval for member in members]
    return GuardKind(kind, names, n, share, sum(after) / n if n else 0.0, chance, low, counts, worse, reason)


def _target_claims(targets: Sequence[PairedEval], gate: GateSettings) -> list[Claim]:
    counts = [stats.paired_counts(*_outcomes(pair)) for pair in targets]
    p_values = [float(stats.mcnemar_exact(gained, lost)) for gained, lost in counts]
    claims = []
    for pair, (gained, lost), p, p_holm in zip(targets, counts, p_values, stats.holm(p_values), strict=True):
        before, after = _outcomes(pair)
        n = len(before)
        difference = stats.paired_binary_difference(before, after, stats.sampled([row.template for row in pair.parent]))
        outcome: Outcome = "inconclusive"
        if p_holm < gate.alpha:
            outcome = "better" if gained > lost else "worse"
        discordance = max((gained + lost) / n, gate.planned_effect) if n else 1.0
        power = stats.power_mcnemar(n, discordance, gate.planned_effect, gate.alpha / len(targets))
        claims.append(
            Claim(
                eval=pair.eval, role="target", n=n, parent=_share(before), successor=_share(after),
                difference=_share(after) - _share(before), ci95=(difference.low, difference.high),
                test="mcnemar-exact", p=p, p_holm=p_holm, margin=None, power=power, outcome=outcome,
                gained=gained, lost=lost,
            )
        )  # fmt: skip
    return claims


def _guard_claim(pool: Sequence[PairedEval], a_kind_is_worse: bool, gate: GateSettings) -> Claim:
    before, after, clusters = _pooled(pool)
    n = len(before)
    gained, lost = stats.paired_counts(before, after)
    interval = stats.paired_binary_difference(before, after, clusters)
    test = stats.noninferiority(before, after, gate.margin, clusters, gate.alpha)
    outcome: Outcome = "non-inferior" if test.held else "inconclusive"
    if a_kind_is_worse or (not test.held and interval.high < 0):
        outcome = "worse"
    discordance = max((gained + lost) / n, 1 / n)
    return Claim(
        eval=GUARD_POOL, role="guard", n=n, parent=_share(before), successor=_share(after),
        difference=_share(after) - _share(before), ci95=(interval.low, interval.high), test="noninferiority-score",
        p=test.p, margin=gate.margin, power=stats.power_noninferiority(n, discordance, gate.margin, gate.alpha),
        outcome=outcome, gained=gained, lost=lost, bound=test.low,
    )  # fmt: skip


def _prose_claim(prose: PairedProse, gate: GateSettings) -> Claim:
    tokens = sum(count for _, count in prose.parent)
    before = sum(nll for nll, _ in prose.parent) / tokens
    after = sum(nll for nll, _ in prose.successor) / tokens
    test = stats.perplexity_noninferiority(prose.parent, prose.successor, gate.prose_margin, gate.alpha)
    two_sided = stats.perplexity_noninferiority(prose.parent, prose.successor, gate.prose_margin, gate.alpha / 2)
    mirrored = stats.perplexity_noninferiority(prose.successor, prose.parent, gate.prose_margin, gate.alpha / 2)
    interval = (mirrored.low, -two_sided.low)
    outcome: Outcome = "non-inferior" if test.held else "worse" if interval[0] > 0 else "inconclusive"
    power = 1.0
    if test.stderr > 0:
        power = stats.power_noninferiority(1, min(1.0, test.stderr**2), min(gate.prose_margin, 0.999), gate.alpha)
    return Claim(
        eval=PROSE, role="guard", n=len(prose.parent), parent=before, successor=after, difference=after - before,
        ci95=interval, test="noninferiority-bootstrap", p=test.p, margin=gate.prose_margin, power=power,
        outcome=outcome, bound=-test.low,
    )  # fmt: skip


def _verdict(
    claims: Sequence[Claim],
    integrity: Sequence[IntegrityCheck],
    missing: Sequence[str],
    counting_kinds: int,
    gate: GateSettings,
) -> VerdictName:
    if any(not check.passed for check in integrity) or any(claim.outcome == "worse" for claim in claims):
        return "reject"
    guards = {claim.eval: claim.outcome for claim in claims if claim.role == "guard"}
    complete = not missing and {GUARD_POOL, PROSE} <= set(guards) and counting_kinds >= gate.min_guard_kinds
    held = all(outcome == "non-inferior" for outcome in guards.values())
    better = any(claim.outcome == "better" for claim in claims)
    return "promote" if complete and held and better else "inconclusive"


def _explain(
    claims: Sequence[Claim],
    integrity: Sequence[IntegrityCheck],
    missing: Sequence[str],
    kinds: Sequence[GuardKind],
    gate: GateSettings,
) -> list[str]:
    """What stands between this successor and promotion, and what it would have taken; empty when nothing does."""
    lines = [f"integrity: {check.check} failed: {check.detail}" for check in integrity if not check.passed]
    lines += [f"integrity: {name} was not checked" for name in missing]
    targets = [claim for claim in claims if claim.role == "target"]
    if not any(claim.outcome == "better" for claim in targets):
        lines += [_explain_target(claim, len(targets), gate) for claim in targets] or ["no target was evaluated"]
    guards = {claim.eval: claim for claim in claims if claim.role == "guard"}
    counting = sum(kind.counts for kind in kinds)
    if counting < gate.min_guard_kinds:
        lines.append(f"guards: {counting} kinds count, {gate.min_guard_kinds} are needed")
    lines += [f"guards: {kind.kind}: {kind.reason}" for kind in kinds if not kind.counts or kind.worse]
    if GUARD_POOL in guards and guards[GUARD_POOL].outcome != "non-inferior":
        lines.append(_explain_guard(guards[GUARD_POOL], gate))
    if PROSE not in guards:
        lines.append(f"{PROSE} was not measured")
    elif guards[PROSE].outcome != "non-inferior":
        claim = guards[PROSE]
        assert claim.bound is not None
        reach = claim.bound - claim.difference
        lines.append(
            f"{PROSE}: {math.exp(claim.parent):.1f} to {math.exp(claim.successor):.1f}; log-perplexity rose by "
            f"{claim.difference:.3f}, at most {claim.bound:.3f}; a rise below {gate.prose_margin - reach:.3f} "
            f"would have held the margin of {gate.prose_margin:.3f}"
        )
    return lines


def _explain_target(claim: Claim, family: int, gate: GateSettings) -> str:
    assert claim.gained is not None
    assert claim.lost is not None
    text = f"{claim.eval}: {claim.gained} gained, {claim.lost} lost of {claim.n}, p = {claim.p_holm:.2g} after Holm"
    if claim.outcome == "worse":
        return text + "; it is worse"
    level = gate.alpha / family
    wanted = next(
        (up for up in range(claim.lost, claim.n - claim.lost + 1) if stats.mcnemar_exact(up, claim.lost) < level), None
    )
    if wanted is not None:
        text += f"; with {claim.lost} lost it would have taken {wanted} gained"
    if claim.difference > 0:
        needed = stats.sample_size_mcnemar((claim.gained + claim.lost) / claim.n, claim.difference, level, gate.power)
        text += f", or about {needed} items at this rate"
    return text


def _explain_guard(claim: Claim, gate: GateSettings) -> str:
    assert claim.gained is not None
    assert claim.lost is not None
    assert claim.bound is not None
    text = f"guards: {claim.difference:+.1%} of {claim.n}, at worst {claim.bound:+.1%}, margin {-gate.margin:.1%}"
    if claim.difference > -gate.margin:
        discordance = max((claim.gained + claim.lost) / claim.n, abs(claim.difference), 1 / claim.n)
        needed = stats.sample_size_noninferiority(discordance, gate.margin, gate.alpha, gate.power, claim.difference)
        return f"{text}; if that difference is real, about {needed} items would show that it is within the margin"
    return f"{text}; the difference itself is beyond the margin: no number of items helps"


# Integrity


def lineage_check(facts: Mapping[str, tuple[object, object]]) -> IntegrityCheck:
    """``facts`` maps what was compared to (recorded, recomputed); every pair must be equal and present."""
    wrong = [f"{name}: recorded {a}, found {b}" for name, (a, b) in facts.items() if a is None or a != b]
    detail = "; ".join(wrong) if wrong else f"{', '.join(facts)} agree"
    return IntegrityCheck("lineage", bool(facts) and not wrong, detail if facts else "nothing was recorded")


def holdout_check(reads: int, cap: int) -> IntegrityCheck:
    """A locked hold-out may be read ``cap`` times."""
    return IntegrityCheck("holdout-reads", reads <= cap, f"{reads} of {cap} reads")


def contamination_check(rows: int, hits: Sequence[str]) -> IntegrityCheck:
    """From ``model.dataset.check_dataset``."""
    detail = f"{len(hits)} of {rows} rows ask what an eval asks: {hits[0]}" if hits else f"none of {rows} rows"
    return IntegrityCheck("contamination", not hits, detail)


def identity_check(parent_dir: Path, successor_dir: Path) -> IntegrityCheck:
    """The successor has the parent's tensors, in name, shape and type, and has moved, but not to another model.

    ``sqrt(sum ||s - p||^2 / sum ||p||^2)`` over all tensors lies above 0 and below MAX_RELATIVE_DISTANCE.
    """
    import numpy as np
    from safetensors import safe_open

    def tensors(folder: Path) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="np") as file:
                found.update(dict.fromkeys(file.keys(), path))
        return found

    ours, theirs = tensors(parent_dir), tensors(successor_dir)
    if not ours or set(ours) != set(theirs):
        odd = sorted(set(ours) ^ set(theirs))
        return IntegrityCheck("identity", False, f"other tensors: {', '.join(odd[:3]) or 'none found'}")
    moved = norm = 0.0
    for name, path in ours.items():
        with safe_open(path, framework="np") as a, safe_open(theirs[name], framework="np") as b:
            old, new = a.get_tensor(name), b.get_tensor(name)
        if old.shape != new.shape or old.dtype != new.dtype:
            return IntegrityCheck("identity", False, f"{name}: {old.shape} {old.dtype} became {new.shape} {new.dtype}")
        if not np.isfinite(new).all():
            return IntegrityCheck("identity", False, f"{name} is not finite")
        moved += float(np.square(new - old, dtype=np.float64).sum())
        norm += float(np.square(old, dtype=np.float64).sum())
    distance = math.sqrt(moved / norm) if norm else math.inf
    detail = f"{len(ours)} tensors, relative distance to the parent {distance:.3g}"
    return IntegrityCheck("identity", 0 < distance < MAX_RELATIVE_DISTANCE, detail)


# Pairing


def _aligned(pair: PairedEval) -> PairedEval:
    """Both lists in the parent's order. ValueError unless they hold the same keys, each once."""
    later = {row.key: row for row in pair.successor}
    keys = [row.key for row in pair.parent]
    if len(set(keys)) != len(keys) or len(later) != len(pair.successor) or set(keys) != set(later):
        raise ValueError(f"{pair.eval}: parent and successor must answer the same items, each once")
    return PairedEval(pair.eval, pair.kind, pair.role, pair.chance, pair.parent, [later[key] for key in keys])


def _outcomes(pair: PairedEval) -> tuple[list[bool], list[bool]]:
    return [row.strict for row in pair.parent], [row.strict for row in pair.successor]


def _pooled(members: Sequence[PairedEval]) -> tuple[list[bool], list[bool], list[str]]:
    before = [row.strict for member in members for row in member.parent]
    after = [row.strict for member in members for row in member.successor]
    clusters = [f"{member.eval}\0{row.template}" for member in members for row in member.parent]
    return before, after, clusters


def _share(right: Sequence[bool]) -> float:
    return sum(right) / len(right) if right else 0.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
