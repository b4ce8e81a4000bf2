"""``nightshift model`` over small made-up checkpoints; one question to the real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from model.checkpoints import hash_files, tree_sha256
from tests.conftest import Ran
from workspace.lab import Lab
from workspace.tables import Checkpoint, Dataset, Promotion, Proposal


@pytest.fixture
def family(lab: Lab) -> Lab:
    """A lab with m0 (the subject), and m1 trained from it."""
    parquet = lab.artifacts.put_bytes(b"rows", "parquet")
    with lab.ledger.write() as session:
        for number in range(2):
            folder = lab.checkpoints_dir / f"m{number}"
            (folder / "sub").mkdir(parents=True)
            (folder / "config.json").write_text(f'{{"number": {number}}}')
            (folder / "sub" / "weights.bin").write_bytes(bytes([number]) * 1000)
            files = hash_files(folder)
            session.add(
                Checkpoint(
                    name=f"m{number}", sha256=tree_sha256(files), path=f"m{number}", files=files, source="test",
                    licence="none", parent_id=number or None, dataset_id=1 if number else None,
                )
            )  # fmt: skip
            session.flush()
        session.add(
            Dataset(
                checkpoint_id=1, name="d", target="t", rows=1, parquet_sha256=parquet, manifest_sha256=parquet,
                recipe_sha256=parquet,
            )
        )  # fmt: skip
        session.add(Promotion(checkpoint_id=1, by="nightshift", reason="imported"))
    return lab


def subject(nightshift: Callable[..., Ran]) -> str:
    rows = nightshift("model", "list", "--json").json()["checkpoints"]
    return ",".join(row["name"] for row in rows if row["subject"])


def test_list_show_lineage(nightshift: Callable[..., Ran], family: Lab) -> None:
    assert subject(nightshift) == "m0"
    assert "m1" in nightshift("model", "list").out
    shown = nightshift("model", "show", "m1", "--json").json()
    assert (shown["parent"], shown["dataset"], shown["subject"]) == ("m0", 1, False)
    assert nightshift("model", "show", shown["sha256"][:10], "--json").json()["name"] == "m1"
    chain = nightshift("model", "lineage", "m1", "--json").json()["lineage"]
    assert [row["name"] for row in chain] == ["m1", "m0"]
    for command in ("show", "lineage"):
        assert "m0" in nightshift("model", command, "m1").out


def test_an_empty_lab_has_no_model_yet(nightshift: Callable[..., Ran], lab: Lab) -> None:
    assert nightshift("model", "list", "--json").json() == {"checkpoints": []}
    assert "first night" in nightshift("model", "list").out


def test_promote_needs_an_approved_proposal(nightshift: Callable[..., Ran], family: Lab) -> None:
    ran = nightshift("model", "promote", "m1", "--yes")
    assert ran.code == 2
    assert "no proposal" in ran.err
    with family.ledger.write() as session:
        session.add(
            Proposal(kind="posttrain", target="t", title="t", author="m0", status="awaiting_review", checkpoint_id=2)
        )
    ran = nightshift("model", "promote", "m1", "--yes")
    assert ran.code == 2
    assert "review approve 1" in ran.err
    assert subject(nightshift) == "m0"


def test_rollback(nightshift: Callable[..., Ran], family: Lab) -> None:
    assert nightshift("model", "rollback", "--yes").code == 2  # there is nothing before m0
    with family.ledger.write() as session:
        session.add(Promotion(checkpoint_id=2, previous_id=1, by="somebody", reason="test"))
    assert subject(nightshift) == "m1"
    ran = nightshift("model", "rollback", "--yes", "--json")
    assert ran.json() == {"before": "m1", "subject": "m0"}
    assert subject(nightshift) == "m0"
    with family.ledger.read() as session:
        last = session.get_one(Promotion, 3)
    assert last.by == "Ada Tester <ada@example.org>"


def test_export_is_verified_and_whole(nightshift: Callable[..., Ran], family: Lab, tmp_path: Path) -> None:
    ran = nightshift("model", "export", "m1", "--to", tmp_path / "out" / "m1", "--json")
    assert ran.code == 0
    assert hash_files(tmp_path / "out" / "m1") == hash_files(family.checkpoints_dir / "m1")
    assert nightshift("model", "export", "m1", "--to", tmp_path / "out" / "m1").code == 2  # not empty
    (family.checkpoints_dir / "m1" / "config.json").write_text("{}")
    ran = nightshift("model", "export", "m1", "--to", tmp_path / "other")
    assert ran.code == 3
    assert "config.json" in ran.err
    assert sorted(path.name for path in tmp_path.glob("*oth*")) == []


@pytest.mark.slow
def test_ask_the_embedded_model(nightshift: Callable[..., Ran], lab: Lab) -> None:
    ran = nightshift("model", "ask", "m0", "What is the capital of France?", "--tokens", "16", "--json")
    assert ran.code == 0, ran.err
    answer = ran.json()
    assert "Paris" in answer["reply"]
    assert answer["tokens_out"] <= 16
    assert nightshift("model", "ask", "m0", "  ").code == 2
