"""``serve``: a Prefect deployment on our own server with the settings' cron, one at a time; the pages answer."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest

from cli.serve import check_cron
from workspace.errors import UserError
from workspace.lab import Lab

START_S = 200


@pytest.mark.slow
def test_the_night_is_a_scheduled_deployment(lab: Lab) -> None:
    command = [sys.executable, "-m", "cli.main", "--lab", str(lab.root), "serve", "--port", "0"]
    serving = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        text = read_until(serving, "Prefect deployment")
        pages = re.search(r"pages: (http://127\.0\.0\.1:\d+/)", text)
        api = re.search(r"at (http://127\.0\.0\.1:\d+/api)", text)
        assert pages
        assert api
        assert get(pages[1] + "health")["status"] == "ok"
        (deployment,) = wait_for_deployment(api[1])
        assert deployment["schedules"][0]["schedule"]["cron"] == lab.settings.schedule.cron
        assert deployment["global_concurrency_limit"]["limit"] == 1
        assert deployment["parameters"]["lab_dir"] == str(lab.root)
    finally:
        os.killpg(serving.pid, signal.SIGINT)
        try:
            serving.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(serving.pid, signal.SIGKILL)
            serving.wait()
        assert serving.stderr is not None
        serving.stderr.close()


def read_until(process: subprocess.Popen[bytes], word: str) -> str:
    """Standard error up to a line with ``word``."""
    assert process.stderr is not None
    deadline, text = time.monotonic() + START_S, ""
    while time.monotonic() < deadline and not (word in text and text.endswith("\n")):
        ready, _, _ = select.select([process.stderr], [], [], 1)
        if ready:
            text += os.read(process.stderr.fileno(), 4096).decode()
        assert process.poll() is None, text
    return text


def wait_for_deployment(api_url: str) -> list[dict[str, Any]]:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found: list[dict[str, Any]] = get(f"{api_url}/deployments/filter", b"{}")
        if found:
            return found
        time.sleep(0.5)
    return []


def get(url: str, body: bytes | None = None) -> Any:
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.load(reply)


@pytest.mark.parametrize(("cron", "zone"), [("61 1 * * *", "UTC"), ("hello", "UTC"), ("0 1 * * *", "Mars/Olympus")])
def test_a_schedule_that_cannot_be_is_refused(cron: str, zone: str) -> None:
    with pytest.raises(UserError, match="schedule"):
        check_cron(cron, zone)
