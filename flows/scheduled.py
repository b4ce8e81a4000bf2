"""The flow that a schedule runs. Apart from the rest, because importing it imports Prefect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow

from flows.night import run_night
from workspace.lab import Lab


@flow(name="scheduled-night")
def scheduled_night(lab_dir: str, profile: str = "default") -> dict[str, Any]:
    """One night of the lab at ``lab_dir``; an unfinished one is taken up first."""
    return run_night(Lab.find(Path(lab_dir), profile))
