"""The pages: what they serve, what they refuse, and how the report looks to a browser."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from review import queue
from review.pages import coloured, create_app, require_loopback
from tests.review.factory import Night
from workspace.errors import UserError

CHROMIUM = shutil.which("chromium")


@pytest.fixture
def client(night: Night) -> Iterator[TestClient]:
    with TestClient(create_app(night.lab), base_url="http://127.0.0.1:8484") as made:
        yield made


def test_nights_and_their_reports(client: TestClient) -> None:
    index = client.get("/")
    assert index.status_code == 200
    assert '<a href="/nights/1">1</a>' in index.text
    assert "promote" in index.text
    report = client.get("/nights/1")
    assert "<h1>Promote</h1>" in report.text
    assert '<a href="/reviews/1">1</a>' in report.text


def test_the_queue_and_a_proposal_with_its_coloured_diff(client: TestClient, night: Night) -> None:
    listed = client.get("/reviews").text
    assert all(f'href="/reviews/{n}"' in listed for n in (*night.patches, night.successor))
    page = client.get(f"/reviews/{night.patches[0]}").text
    assert '<span class="gi">' in page
    assert '<span class="gd">' in page
    assert "Nightshift-Judge" in page
    assert "prediction, unmeasured" in page
    assert "<svg" in client.get(f"/reviews/{night.successor}").text


def test_decisions_appear(client: TestClient, night: Night) -> None:
    queue.reject(night.lab, night.patches[0], "spills <b>a lot</b>")
    page = client.get(f"/reviews/{night.patches[0]}").text
    assert "spills &lt;b&gt;a lot&lt;/b&gt;" in page
    assert f'href="/reviews/{night.patches[0]}"' not in client.get("/reviews").text
    assert f'href="/reviews/{night.patches[0]}"' in client.get("/reviews?everything=true").text


def test_health(client: TestClient) -> None:
    assert client.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize("path", ["/nights/99", "/reviews/99", "/nothing", "/docs", "/openapi.json"])
def test_what_is_not_there_is_a_page_that_says_so(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "<h1" in answer.text


def test_nothing_can_be_changed_from_a_page(client: TestClient, night: Night) -> None:
    for path in ("/", "/reviews", f"/reviews/{night.patches[0]}", f"/reviews/{night.patches[0]}/merge"):
        assert client.post(path).status_code in (404, 405)
    assert "<form" not in client.get(f"/reviews/{night.patches[0]}").text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8484", 200),
        ("localhost", 200),
        ("[::1]:8484", 200),
        ("evil.example", 400),
        ("127.0.0.1.evil.example:80", 400),
    ],
)
def test_only_loopback_hosts_are_answered(client: TestClient, host: str, status: int) -> None:
    assert client.get("/health", headers={"host": host}).status_code == status


def test_answers_forbid_scripts_and_frames(client: TestClient) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_is_allowed(host: str) -> None:
    assert require_loopback(host) == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_other_addresses_are_refused(host: str) -> None:
    with pytest.raises(UserError, match="this machine only"):
        require_loopback(host)


def test_a_diff_cannot_become_markup() -> None:
    assert "<script>" not in coloured("+<script>alert(1)</script>\n")


def screenshot(page: str, folder: Path, width: int) -> Image.Image:
    """What chromium draws of a page: an independent reader of our HTML, CSS and SVG."""
    assert CHROMIUM is not None
    (folder / "page.html").write_text(page)
    shot = folder / f"shot{width}.png"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--screenshot={shot}", f"--window-size={width},1500"]
    subprocess.run([*command, (folder / "page.html").as_uri()], check=True, capture_output=True, timeout=240)
    with Image.open(shot) as image:
        return image.convert("RGB")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH (the CI installs it)")
def test_a_browser_draws_the_report(page: str, tmp_path: Path) -> None:
    image = screenshot(page, tmp_path, 1100)
    counted = image.getcolors(maxcolors=image.width * image.height)
    assert counted is not None
    colours = {rgb: number for number, rgb in counted if isinstance(rgb, tuple)}
    share = {
        name: colours.get(rgb, 0) / (image.width * image.height)
        for name, rgb in {"paper": (251, 250, 247), "accent": (29, 107, 95), "warn": (168, 90, 18)}.items()
    }
    assert share["paper"] > 0.5  # the page's own paper, not a blank or an error page
    assert share["accent"] > 0.001  # headline, successors, meters
    assert share["warn"] > 0.0001  # margins of the guards
