"""A night for one purpose: its settings on top of the lab's, and its place behind an unfinished night."""

from __future__ import annotations

import pytest

from flows.errand import Errand, is_errand, optimize, refuse_other, train
from workspace.errors import SurroundingsError, UserError
from workspace.lab import Lab
from workspace.settings import FILE, load_settings
from workspace.tables import Night


def _night(lab: Lab, profile: str) -> Night:
    return Night(
        profile=profile, only=["kernels"], seed="1", base_commit=lab.git.head(), settings_sha256="0" * 64,
        fingerprint={}, budget_wall_s=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("profile", ["default", "smoke"])
def test_an_errand_lays_its_settings_over_the_profile(lab: Lab, profile: str) -> None:
    lab = Lab(lab.root, profile)
    plain = load_settings(lab.root / FILE, profile)
    errand = optimize("softmax", 40)
    text = errand.settings_text((lab.root / FILE).read_text())
    found = load_settings(lab.root / FILE, errand.profile(lab), text)
    assert (found.kernels.tasks, found.kernels.candidates) == (["softmax"], 40)
    assert found.kernels.judge == plain.kernels.judge
    assert found.survey == plain.survey
    found = load_settings(lab.root / FILE, (errand := train("smoke", None)).profile(lab), errand.settings_text(text))
    assert found.data.recipe == "smoke"
    assert found.kernels == plain.kernels


def test_an_unknown_profile_in_a_chain_is_named(lab: Lab) -> None:
    with pytest.raises(UserError, match="no such profile") as caught:
        load_settings(lab.root / FILE, "smoke+fast")
    assert caught.value.value == "fast"


@pytest.mark.parametrize(
    ("errand", "other"),
    [(optimize("softmax", 8), "default"), (optimize("softmax", 8), "default+optimize-rmsnorm"), (None, None)],
)
def test_an_unfinished_night_goes_first(lab: Lab, errand: Errand | None, other: str | None) -> None:
    if errand is None:  # a plain night takes up whatever is unfinished
        refuse_other(_night(lab, "default+optimize-rmsnorm"), None, lab)
        return
    assert other is not None
    with pytest.raises(SurroundingsError) as caught:
        refuse_other(_night(lab, other), errand, lab)
    assert caught.value.remedy.startswith("nightshift night")
    refuse_other(_night(lab, errand.profile(lab)), errand, lab)  # its own is taken up


def test_only_what_was_asked_for_by_name_is_an_errand(lab: Lab) -> None:
    assert [is_errand(_night(lab, name)) for name in ("default", "smoke", "smoke+optimize-softmax")] == [
        False, False, True,
    ]  # fmt: skip
