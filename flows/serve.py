"""Every night: the night as a Prefect deployment with the cron of the settings, one at a time, kept running.

The deployment is served from this process (no work pool, nothing to install); each scheduled run is a process of its
own, which Prefect's runner starts with this server's address in its environment.
"""

from __future__ import annotations

from workspace.lab import Lab

LIMIT = 1  # nights at a time; a second one that comes due meanwhile is cancelled, not queued


def deployment_name(lab: Lab) -> str:
    return f"{lab.settings.name}-{lab.lab_id[:8]}"


def serve_nights(lab: Lab) -> None:
    """Register the deployment and run what comes due, until interrupted. A Prefect server must answer already."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.schedules import Cron
    from prefect.types.entrypoint import EntrypointType

    from flows.scheduled import scheduled_night

    scheduled_night.serve(
        name=deployment_name(lab),
        schedule=Cron(lab.settings.schedule.cron, timezone=lab.settings.schedule.timezone),
        parameters={"lab_dir": str(lab.root), "profile": lab.profile},
        global_limit=ConcurrencyLimitConfig(limit=LIMIT, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
        pause_on_shutdown=False,
        print_starting_message=False,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
