"""``nightshift serve``: schedules the nights and serves the review pages."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.common import LabOption, note, open_lab
from workspace.errors import SurroundingsError, UserError

if TYPE_CHECKING:
    from workspace.lab import Lab


def serve(
    lab: LabOption = None,
    profile: Annotated[str, typer.Option(help="Settings profile of the scheduled nights.")] = "default",
    port: Annotated[int | None, typer.Option(help="Port of the pages (settings: serve.port).")] = None,
) -> None:
    """Run the night on the schedule of the settings, and serve the review pages on the loopback, until Ctrl-C."""
    from workspace.lock import exclusive

    opened = open_lab(lab, profile)
    check_cron(opened.settings.schedule.cron, opened.settings.schedule.timezone)
    from flows.serve import deployment_name, serve_nights
    from flows.server import prefect_server

    with exclusive(opened.state / "serve.lock", "nightshift serve of this lab"), prefect_server() as server:
        pages = _Pages(opened, opened.settings.serve.port if port is None else port)
        pages.start()
        try:
            server.wait()
            note(f"pages: {pages.url}")
            note(f"nights: {opened.settings.schedule.cron} ({opened.settings.schedule.timezone}),")
            note(f"        Prefect deployment scheduled-night/{deployment_name(opened)} at {server.api_url}")
            serve_nights(opened)
        finally:
            pages.stop()


def check_cron(cron: str, timezone: str) -> None:
    """UserError for a cron line or a time zone that nothing can be scheduled with."""
    # not Prefect's own check: Prefect must not be imported before it is told which server to use
    from datetime import UTC, datetime
    from zoneinfo import ZoneInfo

    from cronsim import CronSim, CronSimError

    try:
        ZoneInfo(timezone)
    except (KeyError, ValueError):
        raise UserError("no such time zone", field="schedule.timezone", value=timezone, allowed="e.g. UTC") from None
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError:
        raise UserError(
            "not a cron line", field="schedule.cron", value=cron, allowed='five fields, e.g. "30 1 * * *"'
        ) from None


class _Pages:
    """The review pages in a thread of this process."""

    def __init__(self, lab: Lab, port: int) -> None:
        import socket

        from review.pages import create_app, require_loopback

        self.host = require_loopback(lab.settings.serve.host)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((self.host, port))
        except OSError as error:
            raise SurroundingsError(
                f"port {port} on {self.host} is taken: {error}", remedy="nightshift serve --port N, or serve.port"
            ) from error
        self.url = f"http://{self.host}:{self._socket.getsockname()[1]}/"
        self._app = create_app(lab)
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        import uvicorn

        self._server = uvicorn.Server(uvicorn.Config(self._app, log_level="warning"))
        self._server.install_signal_handlers = lambda: None  # the main thread's are Prefect's
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="pages", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5)
        self._socket.close()
