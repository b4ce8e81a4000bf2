"""A lab with one running night and its subject; no model is loaded."""

from __future__ import annotations

import pytest

from workspace.lab import Lab
from workspace.tables import Checkpoint, Night


@pytest.fixture
def night_id(lab: Lab) -> int:
    with lab.ledger.write() as session:
        subject = Checkpoint(name="m0", sha256="0" * 64, path="m0", source="test", licence="Apache-2.0")
        session.add(subject)
        session.flush()
        night = Night(
            profile="default", seed="1", base_commit="0" * 40, settings_sha256="0" * 64, budget_wall_s=60,
            subject_id=subject.id,
        )  # fmt: skip
        session.add(night)
        session.flush()
        assert night.id is not None
        return night.id
