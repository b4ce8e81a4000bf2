"""The texts that a night writes into git: branch names and commit messages with their trailers."""

from __future__ import annotations

import textwrap

from workspace.tables import Candidate, Checkpoint, Proposal


def slug(text: str) -> str:
    """Lower-case letters, digits and dashes, at most 48."""
    words = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    return "-".join(part for part in words.split("-") if part)[:48].rstrip("-") or "change"


def commit_message(proposal: Proposal, candidate: Candidate, author: Checkpoint, judge: str) -> str:
    """What changed, why it should be faster, what is not known, and the trailers that bind the evidence."""
    plan = proposal.plan
    target, size = plan["cell"]
    schedule = ", ".join(f"{name}={value}" for name, value in candidate.move.items() if name != "cell")
    body = textwrap.fill(
        f"The schedule of the cell ({target}, {size}) becomes {schedule}. The cost model predicts "
        f"{plan['predicted_us']:.1f} us where the incumbent is predicted to take {plan['incumbent_us']:.1f} us "
        f"(floor {plan['floor_us']:.1f} us). This is a prediction: nothing was measured on a device. "
        "The kernel was right in Triton's interpreter against the fp64 reference, on shown and held-out shapes, "
        "and compiles ahead of time.",
        width=100,
    )
    trailers = [
        f"Nightshift-Proposal: {proposal.id}",
        f"Nightshift-Model: {author.name} sha256:{author.sha256}",
        f"Nightshift-Candidate: sha256:{candidate.sha256}",
        f"Nightshift-Evidence: {proposal.level}",
        f"Nightshift-Judge: {judge if judge.startswith('sha256:') else 'sha256:' + judge}",
        "Nightshift-Unmeasured: yes",
    ]
    return f"{proposal.title}\n\n{body}\n\n" + "\n".join(trailers) + "\n"
