"""Decisions and their effects: what may be merged, what a merge leaves behind, what an interruption cannot break."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlmodel import Session, col, select

from model import checkpoints
from review import queue
from review.items import Item, diff_of, list_items, show_item
from review.report import collect_report
from tests.review.factory import KERNEL, Night
from workspace import tables
from workspace.errors import UserError
from workspace.files import sha256_bytes
from workspace.gitrepo import MergeConflict
from workspace.lab import Lab

ADA = "Ada Tester <ada@example.org>"


def git(night: Night, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=night.lab.root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def merges(night: Night) -> list[str]:
    return git(night, "rev-list", "--merges", "HEAD").split()


def status(night: Night, number: int) -> str:
    return show_item(night.lab, number).status


def rows(night: Night, table: Any) -> list[Any]:
    with night.lab.ledger.read() as session:
        found = list(session.exec(select(table).order_by(table.id)))
        session.expunge_all()
    return found


def move_branch(night: Night, item: Item, files: dict[str, str]) -> str:
    """Put one more commit on the patch's branch, as a person would."""
    git(night, "checkout", "-q", item.branch)
    for path, text in files.items():
        (night.lab.root / path).write_text(text)
        git(night, "add", path)
    git(night, "commit", "-q", "--allow-empty", "-m", "one more")
    git(night, "checkout", "-q", "main")
    return git(night, "rev-parse", item.branch)


def test_the_queue_shows_successors_first_then_patches_by_gain(promoted: Night) -> None:
    items = list_items(promoted.lab)
    assert [i.id for i in items] == [promoted.successor, *promoted.patches]
    assert items[1].level == "compiled"
    assert items[1].judge.startswith("sha256:")


def test_show_has_evidence_figures_diff_stat_and_trailers(promoted: Night) -> None:
    item = show_item(promoted.lab, promoted.patches[0])
    assert item.diff_stat == {"kernels/rmsnorm/kernel.py": (1, 1)}
    assert item.trailers["Nightshift-Evidence"] == "compiled"
    assert item.trailers["Nightshift-Judge"] == item.judge
    assert "11.6" in item.figures
    assert "prediction, unmeasured" in item.figures
    assert item.to_json()["moved"] is False


def test_diff_shows_the_changed_line(promoted: Night) -> None:
    lines = diff_of(promoted.lab, promoted.patches[0]).splitlines()
    assert [line[0] for line in lines if line.startswith(("+ ", "- "))] == ["-", "+"]
    with pytest.raises(UserError, match="a successor has no diff"):
        diff_of(promoted.lab, promoted.successor)


def test_an_approval_is_a_row_bound_to_the_commit(night: Night) -> None:
    number = night.patches[0]
    item = queue.approve(night.lab, number, "good idea")
    assert item.status == "approved"
    (review,) = rows(night, tables.Review)
    assert (review.decision, review.reviewer, review.reason) == ("approve", ADA, "good idea")
    assert review.head == git(night, "rev-parse", item.branch)
    assert merges(night) == []


def test_merging_a_patch_puts_the_candidate_into_the_lab(night: Night) -> None:
    number = night.patches[0]
    item = queue.approve(night.lab, number)
    with pytest.raises(UserError, match="nobody has measured"):
        queue.merge(night.lab, number)
    merged = queue.merge(night.lab, number, accept_unmeasured=True)
    source = (night.lab.root / "kernels/rmsnorm/kernel.py").read_bytes()
    assert sha256_bytes(source) == item.candidate
    assert merges(night) == [merged.commit]
    message = git(night, "log", "-1", "--format=%B")
    assert f"Nightshift-Merge: {number} {item.head}" in message
    assert f"Nightshift-Accepted-Unmeasured: {ADA}" in message
    after = show_item(night.lab, number)
    assert (after.status, after.merge_commit, list(after.flags)) == ("merged", merged.commit, ["unmeasured"])
    assert [r.decision for r in rows(night, tables.Review)] == ["approve", "merge"]
    flags = {f.code for f in collect_report(night.lab).flags}
    assert "unmeasured" in flags


def test_a_measured_patch_needs_no_acceptance(night: Night) -> None:
    number = night.patches[0]
    with night.lab.ledger.write() as session:
        session.get_one(tables.Proposal, number).level = "measured"
    queue.approve(night.lab, number)
    assert queue.merge(night.lab, number).flags == []
    assert "Accepted-Unmeasured" not in git(night, "log", "-1", "--format=%B")


def test_merging_twice_has_one_effect(night: Night) -> None:
    number = night.patches[0]
    queue.approve(night.lab, number)
    first = queue.merge(night.lab, number, accept_unmeasured=True)
    again = queue.merge(night.lab, number, accept_unmeasured=True)
    assert (again.effect, again.commit) == ("already merged", first.commit)
    assert len(merges(night)) == 1


def test_only_what_is_approved_is_merged(night: Night) -> None:
    for number in (night.patches[0], night.successor):
        with pytest.raises(UserError, match="awaiting review"):
            queue.merge(night.lab, number, accept_unmeasured=True)
    assert merges(night) == []


def test_a_branch_that_moved_must_be_approved_again(night: Night) -> None:
    number = night.patches[0]
    item = queue.approve(night.lab, number)
    tip = move_branch(night, item, {})
    with pytest.raises(UserError, match="moved since it was approved") as told:
        queue.merge(night.lab, number, accept_unmeasured=True)
    assert told.value.exit_code == 2
    assert "approve again" in told.value.remedy
    assert queue.approve(night.lab, number).head == tip
    assert queue.merge(night.lab, number, accept_unmeasured=True).commit in merges(night)


def test_a_branch_with_another_candidate_cannot_be_approved(night: Night) -> None:
    item = show_item(night.lab, night.patches[0])
    move_branch(night, item, {"kernels/rmsnorm/kernel.py": "SCHEDULES = {}\n"})
    with pytest.raises(UserError, match="not the candidate that was judged"):
        queue.approve(night.lab, item.id)


def test_a_patch_may_change_only_its_kernel(night: Night) -> None:
    item = show_item(night.lab, night.patches[0])
    move_branch(night, item, {"nightshift.toml": "name = 'mine'\n"})
    with pytest.raises(UserError, match=r"also changes nightshift\.toml"):
        queue.approve(night.lab, item.id)


def test_no_merge_over_a_dirty_tree(night: Night) -> None:
    number = night.patches[0]
    queue.approve(night.lab, number)
    path = night.lab.root / "nightshift.toml"
    path.write_text(path.read_text() + "\n# mine\n")
    with pytest.raises(UserError, match="uncommitted changes"):
        queue.merge(night.lab, number, accept_unmeasured=True)
    assert "# mine" in path.read_text()
    assert status(night, number) == "approved"


def test_a_conflict_is_named_and_leaves_the_tree_as_it_was(night: Night) -> None:
    number = night.patches[0]
    queue.approve(night.lab, number)
    path = night.lab.root / "kernels/rmsnorm/kernel.py"
    path.write_text(KERNEL.format(warps=32, source="mine"))
    git(night, "commit", "-qam", "another schedule")
    before = git(night, "rev-parse", "HEAD")
    with pytest.raises(MergeConflict, match="does not merge cleanly"):
        queue.merge(night.lab, number, accept_unmeasured=True)
    assert git(night, "rev-parse", "HEAD") == before
    assert git(night, "status", "--porcelain", "--untracked-files=no") == ""
    assert status(night, number) == "approved"


class Killed(BaseException):
    """Stands for kill -9: nothing after it runs."""


@pytest.mark.parametrize("which", ["patch", "successor"])
def test_a_merge_killed_before_its_rows_is_repaired(night: Night, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    number = night.patches[0] if which == "patch" else night.successor
    queue.approve(night.lab, number)

    def kill(*_arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(queue, "_write_merge", kill)
        with pytest.raises(Killed):
            queue.merge(night.lab, number, accept_unmeasured=True)
    assert status(night, number) == "approved"
    merged = queue.merge(night.lab, number)  # no option needed: the effect is there already
    assert merged.repaired
    assert status(night, number) == "merged"
    assert len(merges(night)) == (1 if which == "patch" else 0)
    assert len(rows(night, tables.Promotion)) == (1 if which == "patch" else 2)
    assert any("repaired" in i.what for i in collect_report(night.lab).incidents)


def test_merges_at_the_same_time_have_one_effect(night: Night) -> None:
    number = night.patches[0]
    queue.approve(night.lab, number)
    effects: list[str] = []

    def go() -> None:
        lab = Lab(night.lab.root)
        effects.append(queue.merge(lab, number, accept_unmeasured=True).effect)
        lab.ledger.dispose()

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(effects) == ["already merged", "already merged", "git merge"]
    assert len(merges(night)) == 1
    assert [r.decision for r in rows(night, tables.Review)] == ["approve", "merge"]


def rival(night: Night, number: int, **changes: Any) -> int:
    """A second open proposal like ``number``."""
    with night.lab.ledger.write() as session:
        row = session.get_one(tables.Proposal, number)
        copied = {**row.model_dump(exclude={"id"}), **changes}
        other = tables.Proposal(**copied)
        session.add(other)
        session.flush()
        assert other.id is not None
        return other.id


def test_a_merge_supersedes_rivals_for_its_cell_only(night: Night) -> None:
    number = night.patches[0]
    same = rival(night, number)
    elsewhere = rival(night, number, slot="rmsnorm/sm_80/4096")
    queue.approve(night.lab, number)
    assert list(queue.merge(night.lab, number, accept_unmeasured=True).superseded) == [same]
    assert [status(night, n) for n in (same, elsewhere, night.patches[1])] == [
        "superseded",
        "awaiting_review",
        "awaiting_review",
    ]
    with pytest.raises(UserError, match="superseded"):
        queue.approve(night.lab, same)


def test_a_promoted_successor_is_the_next_model(night: Night) -> None:
    item = queue.approve(night.lab, night.successor)
    other = rival(night, night.successor, target="gcd", slot="gcd")
    merged = queue.merge(night.lab, night.successor)
    with night.lab.ledger.read() as session:
        subject = checkpoints.subject(session)
        assert subject is not None
        assert (subject.name, subject.sha256) == ("m1", item.head)
    assert (merged.checkpoint, list(merged.superseded)) == ("m1", [other])
    promotion = rows(night, tables.Promotion)[-1]
    assert (promotion.by, promotion.override, promotion.proposal_id) == (ADA, False, night.successor)


@pytest.mark.parametrize("verdict", ["reject", "inconclusive"])
def test_against_its_verdict_only_with_override_and_reason(make_night: Callable[[str], Night], verdict: str) -> None:
    night = make_night(verdict)
    queue.approve(night.lab, night.successor)
    for options in ({}, {"override": True}, {"reason": "I know"}):
        with pytest.raises(UserError, match=f"its verdict is {verdict}"):
            queue.merge(night.lab, night.successor, **options)
    assert queue.merge(night.lab, night.successor, override=True, reason="demo day").flags == ["override"]
    texts = [f.text for f in collect_report(night.lab).flags if f.code == "override"]
    assert len(texts) == 1
    assert "demo day" in texts[0]
    assert ADA in texts[0]


def test_a_successor_of_a_former_subject_is_not_promoted_quietly(night: Night) -> None:
    queue.approve(night.lab, night.successor)
    with night.lab.ledger.write() as session:
        session.add(copy_of_m0 := _checkpoint(session))
        session.flush()
        session.add(tables.Promotion(checkpoint_id=copy_of_m0.id or 0, previous_id=1, by="x", reason="y"))
    with pytest.raises(UserError, match="the subject is now m9"):
        queue.merge(night.lab, night.successor)


def _checkpoint(session: Session) -> tables.Checkpoint:
    first = session.exec(select(tables.Checkpoint).where(col(tables.Checkpoint.name) == "m0")).one()
    return tables.Checkpoint(**{**first.model_dump(exclude={"id"}), "name": "m9"})


@pytest.mark.parametrize(
    ("decide", "state"), [(queue.reject, "rejected"), (queue.request_changes, "changes_requested")]
)
def test_refusals_need_a_reason_and_keep_it(night: Night, decide: Callable[[Lab, int, str], Item], state: str) -> None:
    number = night.patches[0]
    with pytest.raises(UserError, match="a reason is needed"):
        decide(night.lab, number, "  ")
    assert decide(night.lab, number, "spills at n=128").status == state
    assert rows(night, tables.Review)[0].reason == "spills at n=128"
    with pytest.raises(UserError):
        queue.merge(night.lab, number, accept_unmeasured=True)


def test_what_is_decided_stays_decided(night: Night) -> None:
    number = night.patches[0]
    queue.reject(night.lab, number, "no")
    with pytest.raises(UserError, match="rejected cannot be decided"):
        queue.approve(night.lab, number)
    with pytest.raises(UserError, match="no such proposal") as told:
        queue.approve(night.lab, 999)
    assert str(night.patches[1]) in told.value.allowed
