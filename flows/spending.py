"""What a project's work costs it: wall clock against its own budget, besides the night's."""

from __future__ import annotations

from flows.context import NightRun
from flows.projects import spend
from workspace.tables import Project


def work_on(run: NightRun, project_id: int | None, took_s: float) -> None:
    """Charge ``took_s`` to a project, and call it active from its first work on."""
    if project_id is None:
        return
    spend(run.lab, project_id, wall_s=took_s)
    with run.lab.ledger.write() as session:
        project = session.get_one(Project, project_id)
        if project.status == "open":
            project.status = "active"
            session.add(project)
