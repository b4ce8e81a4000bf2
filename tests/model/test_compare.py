"""The gate: three nights that must come out differently, and everything that must stop a promotion."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from safetensors.numpy import save_file

from model.compare import (
    GateSettings,
    IntegrityCheck,
    PairedEval,
    PairedProse,
    compare,
    contamination_check,
    holdout_check,
    identity_check,
    lineage_check,
    plan_items,
    plan_target_items,
)
from model.evals import ItemResult
from workspace import stats

CLEAN = [IntegrityCheck(name, True, "") for name in ("contamination", "identity", "lineage", "holdout-reads")]


def pair(
    name: str,
    both: int,
    gained: int,
    lost: int,
    neither: int,
    *,
    role: Literal["target", "guard"] = "guard",
    kind: str = "",
    chance: float = 0.0,
) -> PairedEval:
    outcomes = [(True, True)] * both + [(False, True)] * gained + [(True, False)] * lost + [(False, False)] * neither
    random.Random(name).shuffle(outcomes)
    parent = [ItemResult(f"{name}{n}", "t", "", old, float(old)) for n, (old, _) in enumerate(outcomes)]
    successor = [ItemResult(f"{name}{n}", "t", "", new, float(new)) for n, (_, new) in enumerate(outcomes)]
    return PairedEval(name, kind or name, role, chance, parent, list(reversed(successor)))


def guards(gained: int = 6, lost: int = 6) -> list[PairedEval]:
    return [pair(f"guard{n}", 85, gained, lost, 65 - gained - lost) for n in range(4)]


def prose(rise: float = 0.01) -> PairedProse:
    draw = random.Random(1)
    before = [(draw.gauss(560, 30), 200) for _ in range(24)]
    return PairedProse(before, [(nll + 200 * (rise + draw.gauss(0, 0.01)), 200) for nll, _ in before])


TARGET = pair("sums", 15, 53, 4, 128, role="target")


def test_a_gain_with_guards_held_is_promoted() -> None:
    found = compare("m0", "m1", [TARGET, *guards()], prose(), CLEAN)
    assert found.verdict == "promote"
    assert found.explanation == []
    target = found.claims[0]
    assert (target.outcome, target.gained, target.lost) == ("better", 53, 4)
    assert target.p == pytest.approx(stats.mcnemar_exact(53, 4))
    assert target.p_holm == target.p
    assert target.difference == pytest.approx(49 / 200)
    assert target.ci95[0] < target.difference < target.ci95[1]


def test_the_document_is_the_one_that_is_promised() -> None:
    document = json.loads(
        json.dumps(compare("m0", "m1", [TARGET, *guards()], prose(), CLEAN).to_json(), allow_nan=False)
    )
    assert {"parent", "successor", "verdict", "alpha", "claims", "integrity"} <= set(document)
    for claim in document["claims"]:
        needed = {"eval", "role", "n", "parent", "successor", "difference", "ci95", "test", "p", "margin", "power"}
        assert needed | {"outcome"} <= set(claim)
        assert ("p_holm" in claim) == (claim["role"] == "target")
        assert (claim["margin"] is None) == (claim["role"] == "target")
    assert [claim["eval"] for claim in document["claims"]] == ["sums", "guards", "prose-perplexity"]
    assert {check["check"] for check in document["integrity"]} == {check.check for check in CLEAN}


def test_destroyed_guards_are_rejected_however_high_the_target() -> None:
    found = compare("m0", "m1", [TARGET, *guards(gained=0, lost=40)], prose(), CLEAN)
    assert found.verdict == "reject"
    assert next(claim for claim in found.claims if claim.eval == "guards").outcome == "worse"
    assert any("beyond the margin" in line for line in found.explanation)


def test_noise_is_inconclusive_and_says_what_was_missing() -> None:
    found = compare("m0", "m1", [pair("sums", 60, 13, 8, 119, role="target"), *guards()], prose(), CLEAN)
    assert found.verdict == "inconclusive"
    line = next(line for line in found.explanation if line.startswith("sums"))
    assert "13 gained, 8 lost of 200, p = 0.38 after Holm" in line
    wanted = int(line.split("taken ")[1].split(" gained")[0])
    assert stats.mcnemar_exact(wanted, 8) < 0.05 <= stats.mcnemar_exact(wanted - 1, 8)


def test_holm_counts_every_target_of_the_night() -> None:
    near = pair("near", 50, 20, 8, 122, role="target")
    alone = compare("a", "b", [near, *guards()], prose(), CLEAN)
    beside = compare("a", "b", [near, pair("other", 50, 9, 9, 132, role="target"), *guards()], prose(), CLEAN)
    assert alone.verdict == "promote"
    assert beside.verdict == "inconclusive"
    assert beside.claims[0].p_holm == pytest.approx(2 * beside.claims[0].p)


def test_a_worse_target_is_rejected() -> None:
    assert (
        compare("a", "b", [pair("sums", 60, 4, 53, 83, role="target"), *guards()], prose(), CLEAN).verdict == "reject"
    )


def test_guards_at_floor_or_chance_do_not_count() -> None:
    weak = [pair("floor", 1, 0, 1, 148), pair("boolean", 60, 15, 17, 58, chance=0.5), *guards()[:3]]
    found = compare("a", "b", [TARGET, *weak], prose(), CLEAN)
    reasons = {kind.kind: kind for kind in found.guard_kinds}
    assert not reasons["floor"].counts
    assert not reasons["boolean"].counts
    assert found.verdict == "inconclusive"
    assert any("3 kinds count, 4 are needed" in line for line in found.explanation)
    pool = next(claim for claim in found.claims if claim.eval == "guards")
    assert pool.n == 3 * 150


def test_one_ruined_kind_cannot_hide_in_the_pool() -> None:
    mixed = [pair("ruined", 60, 0, 60, 30), *[pair(f"up{n}", 70, 40, 5, 35) for n in range(4)]]
    found = compare("a", "b", [TARGET, *mixed], prose(), CLEAN)
    pool = next(claim for claim in found.claims if claim.eval == "guards")
    assert pool.difference > 0
    assert pool.outcome == "worse"
    assert next(kind for kind in found.guard_kinds if kind.kind == "ruined").worse
    assert found.verdict == "reject"


def test_small_guards_prove_nothing() -> None:
    small = [pair(f"g{n}", 8, 0, 0, 2) for n in range(4)]
    found = compare("a", "b", [TARGET, *small], prose(), CLEAN)
    assert found.verdict == "inconclusive"
    assert any("items would show" in line for line in found.explanation)


@pytest.mark.parametrize(("rise", "verdict"), [(0.01, "promote"), (0.049, "reject"), (0.2, "reject")])
def test_prose_must_hold(rise: float, verdict: str) -> None:
    found = compare("a", "b", [TARGET, *guards()], prose(rise), CLEAN)
    assert found.verdict == verdict
    claim = next(claim for claim in found.claims if claim.eval == "prose-perplexity")
    assert claim.difference == pytest.approx(rise, abs=0.01)
    assert claim.ci95[0] < claim.difference < claim.ci95[1]


def test_what_was_not_checked_is_no_promotion_and_what_failed_is_a_rejection() -> None:
    assert compare("a", "b", [TARGET, *guards()], prose(), CLEAN[:3]).verdict == "inconclusive"
    assert compare("a", "b", [TARGET, *guards()], None, CLEAN).verdict == "inconclusive"
    failed = [replace(CLEAN[0], passed=False, detail="row 3"), *CLEAN[1:]]
    found = compare("a", "b", [TARGET, *guards()], prose(), failed)
    assert found.verdict == "reject"
    assert "contamination failed: row 3" in found.explanation[0]
    assert compare("a", "b", guards(), prose(), CLEAN).explanation == ["no target was evaluated"]


def test_other_items_are_refused() -> None:
    with pytest.raises(ValueError, match="same items"):
        compare("a", "b", [replace(TARGET, successor=TARGET.successor[1:])], prose(), CLEAN)


def test_planned_items_are_the_known_ones() -> None:
    assert plan_items(0.05) == 495
    assert plan_items(0.08) == 194
    assert plan_target_items(0.10) == 155


def test_a_wider_margin_is_stated() -> None:
    found = compare("a", "b", [TARGET, *guards()], prose(), CLEAN, GateSettings(margin=0.08))
    assert next(claim for claim in found.claims if claim.eval == "guards").margin == 0.08


def write_model(folder: Path, **tensors: np.ndarray) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_identity(tmp_path: Path) -> None:
    old = {"a": np.ones((4, 3), np.float32), "b": np.arange(5, dtype=np.float32)}
    parent = write_model(tmp_path / "parent", **old)
    moved = write_model(tmp_path / "moved", a=old["a"] * np.float32(1.01), b=old["b"])
    found = identity_check(parent, moved)
    assert found.passed
    expected = np.sqrt(12 * 0.01**2 / (12 + 30))
    assert f"{expected:.3g}" in found.detail
    wrong: dict[str, dict[str, np.ndarray]] = {
        "same": old,
        "stranger": {"a": -old["a"], "b": -old["b"]},
        "names": {"a": old["a"], "c": old["b"]},
        "shapes": {"a": old["a"].T.copy(), "b": old["b"]},
        "types": {"a": old["a"].astype(np.float16), "b": old["b"]},
        "broken": {"a": old["a"] * np.float32("nan"), "b": old["b"]},
    }
    for name, tensors in wrong.items():
        assert not identity_check(parent, write_model(tmp_path / name, **tensors)).passed, name
    assert not identity_check(parent, tmp_path).passed


def test_the_other_integrity_checks() -> None:
    assert lineage_check({"parent": ("ab", "ab"), "data set": ("cd", "cd")}).passed
    broken = lineage_check({"parent": ("ab", "ab"), "recipe": ("x", "y")})
    assert not broken.passed
    assert broken.detail == "recipe: recorded x, found y"
    assert not lineage_check({"parent": (None, None)}).passed
    assert not lineage_check({}).passed
    assert holdout_check(1, 1).passed
    assert not holdout_check(2, 1).passed
    assert contamination_check(100, []).passed
    assert "1 of 100 rows" in contamination_check(100, ["row 3"]).detail
