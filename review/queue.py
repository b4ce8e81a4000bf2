"""Decisions about proposals, and their effects.

A decision (approve, reject, request changes) is a row bound to what was looked at: the commit of a patch or the sha256
of a successor. Merging is the effect of an approval: a git merge into the lab, or the promotion of a checkpoint. The
effect comes first and leaves a mark (a trailer, a promotion row), the rows follow; a merge that was killed in between
finds the mark at the next call and writes only the rows, so that the effect happens at most once.

    awaiting_review ─ approve ─> approved ─ merge ─> merged      (others of the same slot: superseded)
                    ─ reject ──> rejected
                    ─ request ─> changes_requested
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlmodel import Session, col, select

from review.flags import BELOW_MEASURED
from review.items import OPEN_STATES, Item, find_proposal, show_item, slot_of
from workspace import tables
from workspace.errors import UserError
from workspace.files import sha256_bytes
from workspace.lock import exclusive

if TYPE_CHECKING:
    from workspace.lab import Lab

DECISIONS = {"approve": "approved", "reject": "rejected", "request_changes": "changes_requested"}
MERGE_TRAILER = "Nightshift-Merge"
LOCK_WAIT_S = 60.0


@dataclass(frozen=True)
class Merged:
    """What a merge did. ``repaired`` is true where the effect was already there and only the rows were missing."""

    proposal_id: int
    effect: str
    commit: str
    checkpoint: str
    superseded: Sequence[int]
    flags: Sequence[str]
    repaired: bool = False


def approve(lab: Lab, number: int, reason: str = "") -> Item:
    """Approve a proposal as it stands. Its branch must still hold what was judged."""
    with _alone(lab):
        head = _head_to_approve(lab, show_item(lab, number))
        return _decide(lab, number, "approve", reason, head)


def reject(lab: Lab, number: int, reason: str) -> Item:
    """Refuse a proposal for good; the reason is kept."""
    with _alone(lab):
        return _decide(lab, number, "reject", _needed(reason))


def request_changes(lab: Lab, number: int, reason: str) -> Item:
    """Give a proposal back to its author; the reason is kept."""
    with _alone(lab):
        return _decide(lab, number, "request_changes", _needed(reason))


def merge(
    lab: Lab, number: int, *, accept_unmeasured: bool = False, override: bool = False, reason: str = ""
) -> Merged:
    """Put an approved proposal into effect, at most once.

    UserError for anything that forbids it: not approved, moved since, unmeasured and not accepted, a verdict other than
    promote without override and reason, a dirty tree, a conflict (the tree is then as it was before).
    """
    with _alone(lab):
        item = show_item(lab, number)
        if item.status == "merged":
            return Merged(number, "already merged", item.merge_commit, item.checkpoint, (), tuple(item.flags))
        if item.kind == "kernel":
            return _merge_patch(lab, item, accept_unmeasured)
        if item.kind == "posttrain":
            return _promote(lab, item, override, reason)
        raise UserError(
            "only kernel patches and successors are merged", field="ID", value=number, allowed="kernel, posttrain"
        )


def check_merge(
    lab: Lab, number: int, *, accept_unmeasured: bool = False, override: bool = False, reason: str = ""
) -> Item:
    """Raise what `merge` would raise before its effect, so that a person is only asked what can be done."""
    item = show_item(lab, number)
    if item.kind == "kernel" and item.status != "merged" and not _merge_mark(lab, item):
        _check_patch(lab, item, accept_unmeasured)
    if item.kind == "posttrain" and item.status != "merged":
        head, found = _approved_head(item), _successor(lab, item)
        if found.done is None:
            _check_successor(item, found, head, override, reason)
    return item


def merge_question(item: Item) -> str:
    """What a person is asked before a merge."""
    if item.kind == "posttrain":
        return f"Make {item.checkpoint} the model of the next night (verdict: {item.verdict or 'none'})?"
    return f"Merge {item.branch} into the lab (evidence: {item.level or 'none'}; {item.figures or 'no figures'})?"


def _alone(lab: Lab) -> Any:
    return exclusive(lab.state / "review.lock", "another review decision", wait_s=LOCK_WAIT_S)


def _needed(reason: str) -> str:
    if not reason.strip():
        raise UserError("a reason is needed", field="--reason", value=reason, allowed="a sentence for the author")
    return reason.strip()


def _head_to_approve(lab: Lab, item: Item) -> str:
    """The commit or checkpoint that an approval binds to; UserError where the evidence is not about it."""
    _refuse_fallen(item)
    if not item.branch:
        return item.head
    if not item.tip:
        raise UserError(
            "the branch is gone", field="branch", value=item.branch, remedy=f"nightshift review reject {item.id}"
        )
    path = f"kernels/{item.target}/kernel.py"
    foreign = sorted(set(lab.git.diff_stat(item.base, item.tip)) - {path})
    if foreign:
        raise UserError(
            f"a patch may change only {path}; this one also changes {', '.join(foreign)}",
            field="branch",
            value=item.branch,
            remedy=f"nightshift review request-changes {item.id} --reason …",
        )
    if sha256_bytes(lab.git.read_file(item.tip, path)) != item.candidate:
        raise UserError(
            f"{path} on the branch is not the candidate that was judged",
            field="branch",
            value=item.branch,
            remedy=f"nightshift review request-changes {item.id} --reason …",
        )
    return item.tip


def _decide(lab: Lab, number: int, decision: str, reason: str, head: str | None = None) -> Item:
    """Write the decision and the state it leads to in one transaction."""
    reviewer = lab.git.identity()
    with lab.ledger.write() as session:
        row = find_proposal(session, number)
        if row.status not in OPEN_STATES:
            raise UserError(
                f"a proposal that is {row.status} cannot be decided about",
                field="ID",
                value=number,
                allowed=", ".join(OPEN_STATES),
            )
        bound = head or row.head or ""
        session.add(tables.Review(proposal_id=number, reviewer=reviewer, decision=decision, reason=reason, head=bound))
        row.status, row.head, row.changed_at = DECISIONS[decision], bound or None, tables.now()
        message = f"proposal {number}: {DECISIONS[decision].replace('_', ' ')} by {reviewer}"
        session.add(tables.Event(night_id=row.night_id, kind="review", message=message, data={"head": bound}))
    return show_item(lab, number)


def _approved_head(item: Item) -> str:
    """The head of the approval that stands; UserError if there is none, or what it was about has moved."""
    again = f"nightshift review diff {item.id}, then approve again: nightshift review approve {item.id}"
    if item.status != "approved":
        remedy = f"nightshift review approve {item.id}" if item.status in OPEN_STATES else ""
        raise UserError(
            f"it is {item.status.replace('_', ' ')}", field="ID", value=item.id, allowed="approved", remedy=remedy
        )
    approvals = [r for r in item.reviews if r.decision == "approve"]
    if not approvals:
        raise UserError("it has no recorded approval", field="ID", value=item.id, remedy=again)
    head = approvals[-1].head
    if item.branch and item.tip != head:
        raise UserError(
            f"the branch moved since it was approved ({head[:12]} was approved)",
            field=item.branch,
            value=item.tip[:12] or "gone",
            remedy=again,
        )
    if not item.branch and item.head != head:
        raise UserError("it changed since it was approved", field="ID", value=item.id, remedy=again)
    return head


def _merge_patch(lab: Lab, item: Item, accept_unmeasured: bool) -> Merged:
    found = _merge_mark(lab, item)
    head = item.head if found else _check_patch(lab, item, accept_unmeasured)
    unmeasured = _is_unmeasured(item)
    reviewer = lab.git.identity()
    commit = found or lab.git.merge(item.branch, head, _merge_message(item, head, reviewer, unmeasured))
    flags = ["unmeasured"] if unmeasured else []
    options = {"accept_unmeasured": True} if unmeasured else {}
    others = _write_merge(lab, item, reviewer, head, "", options, flags, commit, found is not None)
    return Merged(item.id, "git merge", commit, "", others, flags, found is not None)


def _merge_mark(lab: Lab, item: Item) -> str | None:
    """The merge commit of an approved patch whose rows are missing, because the merge was killed after it."""
    return lab.git.find_trailer(MERGE_TRAILER, f"{item.id} {item.head}") if item.status == "approved" else None


def _is_unmeasured(item: Item) -> bool:
    return item.level in ("", *BELOW_MEASURED)


def _check_patch(lab: Lab, item: Item, accept_unmeasured: bool) -> str:
    """The commit to merge; UserError for whatever forbids it."""
    head = _approved_head(item)
    _refuse_fallen(item)
    if _is_unmeasured(item) and not accept_unmeasured:
        raise UserError(
            f"its evidence level is {item.level or 'none'}: the gain is a prediction that nobody has measured",
            field="ID",
            value=item.id,
            allowed="measured or certified",
            remedy="wait for a GPU worker (nightshift measure), or add --accept-unmeasured",
        )
    if not lab.git.is_clean():
        raise UserError("the lab has uncommitted changes", field="lab", remedy="commit or stash them first")
    return head


def _refuse_fallen(item: Item) -> None:
    """A patch whose candidate a later judge rejects is neither approved nor merged."""
    if item.kind == "kernel" and item.verdict == "rejected":
        raise UserError(
            "the judge that is installed now rejects this candidate", field="ID", value=item.id,
            allowed="accepted", remedy=f"nightshift review reject {item.id} --reason …",
        )  # fmt: skip


def _merge_message(item: Item, head: str, reviewer: str, unmeasured: bool) -> str:
    """Subject, figures, trailers. The title may be a model's text: one line, shortened."""
    title = " ".join(item.title.split())[:100]
    lines = [f"Merge proposal {item.id}: {title}", "", item.figures.replace("\u00a0", " "), ""]
    lines += [f"{MERGE_TRAILER}: {item.id} {head}"]
    lines += [f"Nightshift-Candidate: {item.candidate}", f"Nightshift-Evidence: {item.level or 'none'}"]
    lines += [f"Nightshift-Judge: {item.judge}"] if item.judge else []
    lines += [f"Nightshift-Accepted-Unmeasured: {reviewer}"] if unmeasured else []
    return "\n".join([*lines, f"Reviewed-by: {reviewer}", ""])


@dataclass(frozen=True)
class _Successor:
    """The rows that a promotion needs."""

    proposal: tables.Proposal
    checkpoint: tables.Checkpoint
    done: tables.Promotion | None
    against: Sequence[str]


def _promote(lab: Lab, item: Item, override: bool, reason: str) -> Merged:
    from model import checkpoints

    head = _approved_head(item)
    found = _successor(lab, item)
    if found.done is None:
        _check_successor(item, found, head, override, reason)
        flagged = bool(found.against)
        why = reason.strip() or f"verdict {item.verdict}, proposal {item.id}"
        reviewer = lab.git.identity()
        checkpoints.promote(lab, found.checkpoint, by=reviewer, reason=why, proposal=found.proposal, override=flagged)
    else:
        flagged, why, reviewer = found.done.override, found.done.reason, found.done.by
    flags, options = (["override"], {"override": True}) if flagged else ([], {})
    repaired = found.done is not None
    others = _write_merge(lab, item, reviewer, head, why, options, flags, "", repaired)
    return Merged(item.id, "promotion", "", found.checkpoint.name, others, flags, repaired)


def _successor(lab: Lab, item: Item) -> _Successor:
    from model import checkpoints

    with lab.ledger.read() as session:
        row = find_proposal(session, item.id)
        checkpoint = session.get(tables.Checkpoint, row.checkpoint_id) if row.checkpoint_id else None
        done = session.exec(select(tables.Promotion).where(tables.Promotion.proposal_id == item.id)).first()
        subject = checkpoints.subject(session)
    if checkpoint is None:
        raise UserError("it has no checkpoint", field="ID", value=item.id)
    return _Successor(row, checkpoint, done, _against(item, checkpoint, subject))


def _check_successor(item: Item, found: _Successor, head: str, override: bool, reason: str) -> None:
    if found.checkpoint.sha256 != head:
        again = f"nightshift review approve {item.id}"
        raise UserError("the checkpoint is not the one that was approved", field="ID", value=item.id, remedy=again)
    if found.against and not (override and reason.strip()):
        raise UserError(
            "; ".join(found.against),
            field="ID",
            value=item.id,
            allowed="a successor whose verdict is promote",
            remedy="leave the parent in place, or add --override --reason … (the report flags it for ever)",
        )


def _against(item: Item, checkpoint: tables.Checkpoint, subject: tables.Checkpoint | None) -> list[str]:
    """What speaks against a promotion: its verdict, or that its parent is no longer the subject."""
    found = []
    if item.verdict != "promote":
        found.append(f"its verdict is {item.verdict or 'missing'}")
    if subject is not None and subject.id not in (checkpoint.parent_id, checkpoint.id):
        found.append(f"it was judged against its parent, but the subject is now {subject.name}")
    return found


def _write_merge(
    lab: Lab,
    item: Item,
    reviewer: str,
    head: str,
    reason: str,
    options: Mapping[str, Any],
    flags: Sequence[str],
    commit: str,
    repaired: bool,
) -> tuple[int, ...]:
    """The rows of a merge whose effect is there, in one transaction; returns the proposals that it superseded."""
    with lab.ledger.write() as session:
        row = find_proposal(session, item.id)
        row.status, row.merge_commit, row.changed_at = "merged", commit or None, tables.now()
        row.flags = sorted({*row.flags, *flags})
        session.add(
            tables.Review(
                proposal_id=item.id,
                reviewer=reviewer,
                decision="merge",
                reason=reason,
                head=head,
                options=dict(options),
            )
        )
        others = _supersede(session, row)
        kind = "merge_repaired" if repaired else "merge"
        message = f"proposal {item.id} ({item.title}) merged by {reviewer}"
        data = {"head": head, "commit": commit, "superseded": list(others), "flags": list(flags)}
        session.add(tables.Event(night_id=row.night_id, kind=kind, message=message, data=data))
    return others


def _supersede(session: Session, merged: tables.Proposal) -> tuple[int, ...]:
    """Other open proposals for the same slot: their evidence was against an incumbent that is gone."""
    rows = session.exec(
        select(tables.Proposal).where(
            col(tables.Proposal.status).in_(OPEN_STATES),
            tables.Proposal.kind == merged.kind,
            tables.Proposal.id != merged.id,
        )
    ).all()
    others = [row for row in rows if slot_of(row) == slot_of(merged)]
    for row in others:
        row.status, row.changed_at = "superseded", tables.now()
        message = f"proposal {row.id} superseded by {merged.id}"
        session.add(tables.Event(night_id=row.night_id, kind="superseded", message=message, data={"by": merged.id}))
    return tuple(row.id for row in others if row.id is not None)
