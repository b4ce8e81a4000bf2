"""The report: what it says, in which order, for nights of every kind."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console
from sqlmodel import Session, select

from review.html import report_page
from review.report import collect_report, next_run, night_status
from review.text import print_report
from tests.review.factory import START, Night, make_lab
from workspace import process, tables
from workspace.errors import UserError

SECTIONS = [
    "Patches to review",
    "Spend against cap",
    "Integrity flags",
    "Crashed, hung or resumed",
    "Tonight",
]


def text_of(night: Night) -> str:
    stream = io.StringIO()
    print_report(collect_report(night.lab), Console(file=stream, width=140, color_system=None))
    return stream.getvalue().replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("verdict", "headline", "words"),
    [
        (
            "promote",
            "Promote",
            ["11.0% to 43.0%", "+32.0 points", "+25.0 to +39.0", "3 × 10⁻¹²", "69 gained and 5 lost"],
        ),
        ("promote", "Promote", ["guards of 4 kinds (−0.6 points, −3.0 to +1.8, margin 5 points)", "held"]),
        ("promote", "Promote", ["prose perplexity (+3.6%, +2.6% to +4.6%, margin 5.1%) held", "integrity is clean"]),
        ("reject", "Hold", ["guards of 4 kinds (−16.7 points", "got worse", "worse by itself: capitals"]),
        ("inconclusive", "Hold", ["11.0% to 13.5%", "−4.5 to +9.5", "p = 0.380", "power 0.99", "n = 200"]),
    ],
)
def test_opens_with_the_decision_in_one_sentence(
    make_night: Callable[[str], Night], verdict: str, headline: str, words: list[str]
) -> None:
    lines = text_of(make_night(verdict)).splitlines()
    assert lines[2].strip() == headline
    opening = " ".join(" ".join(lines[3:7]).split()).lower()
    for word in words:
        assert word.lower() in opening


def test_a_rejection_names_its_reason_before_the_gain(make_night: Callable[[str], Night]) -> None:
    sentence = collect_report(make_night("reject").lab).decision.sentence
    assert sentence.index("got worse") < sentence.index("chain_sum")


def test_the_sections_come_in_their_order(promoted: Night, page: str) -> None:
    text = text_of(promoted)
    for document in (text, page[page.index("<main") :]):
        places = [document.index(title) for title in SECTIONS]
        assert places == sorted(places)
        assert document.index("Promote") < places[0]


def test_patches_come_by_predicted_gain_and_are_called_predictions(promoted: Night, page: str) -> None:
    report = collect_report(promoted.lab)
    gains = [round(p.gain or 0, 4) for p in report.patches]
    assert gains == [round(1 - 11.6 / 14.9, 4), round(1 - 27.5 / 31.4, 4)]  # from the factory's times
    assert "prediction, unmeasured" in text_of(promoted)
    assert "prediction, unmeasured" in page


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    assert "<script" not in page
    assert "default-src 'none'" in page
    outside = re.findall(r"(?:https?:)?//[\w.-]+", page)
    assert {o for o in outside if "www.w3.org" not in o} == set()  # namespaces of SVG only
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]+"', page) == []


def test_the_page_has_unique_ids_plots_with_names_and_tables_beside_them(page: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    plots = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(plots) == 4
    for plot in plots:
        root = ET.fromstring(plot.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
        assert root.attrib["role"] == "img"
        assert "var(--" in plot
        assert re.search(r"#0[1-6]0[1-6]0[1-6]", plot) is None  # every placeholder colour was exchanged
        for reference in re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', plot):
            assert reference in ids
    assert page.count("<table") >= 5


def test_titles_of_a_model_cannot_become_markup(night: Night) -> None:
    with night.lab.ledger.write() as session:
        session.get_one(tables.Proposal, night.patches[0]).title = "<script>alert(1)</script>"
    page = report_page(collect_report(night.lab))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_json_is_one_document_that_says_the_same(promoted: Night) -> None:
    report = collect_report(promoted.lab)
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["decision"]["verdict"] == "promote"
    assert document["decision"]["claims"][0]["ci95"] == pytest.approx([0.25, 0.39])
    assert {s["name"]: s["used"] for s in document["spend"]} == {
        "tokens": 412_806,
        "usd": 0,
        "wall_s": 822,
        "accelerator_s": 0,
    }
    assert document["started_at"] == START.isoformat()


def test_people_come_before_the_models_own_ideas(promoted: Night) -> None:
    queue = collect_report(promoted.lab).tonight.queue
    assert [q.split(" (")[0] for q in queue] == ["Faster rope on sm_90", "Learn chain_sum"]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 1 * * *", datetime(2026, 12, 1, 1, 30, tzinfo=UTC)),
        ("0 22 * * 1-5", datetime(2026, 11, 30, 22, 0, tzinfo=UTC)),  # a Monday
        ("0 3 * * 6", datetime(2026, 12, 5, 3, 0, tzinfo=UTC)),
        ("", None),
        ("every night", None),
    ],
)
def test_the_next_run_follows_the_schedule(cron: str, expected: datetime | None) -> None:
    assert next_run(cron, datetime(2026, 11, 30, 10, 0, tzinfo=UTC)) == expected


def test_the_schedule_is_in_its_own_time_zone() -> None:
    found = next_run("30 1 * * *", datetime(2026, 7, 1, 12, 0, tzinfo=UTC), "Europe/Berlin")
    assert found == datetime(2026, 7, 1, 23, 30, tzinfo=UTC)  # 01:30 in Berlin's summer is 23:30 UTC


def test_what_would_have_been_needed_is_said(make_night: Callable[[str], Night]) -> None:
    night = make_night("inconclusive")
    assert "it would have taken 19 gained" in text_of(night)
    assert collect_report(night.lab).decision.headline == "hold"


def test_the_nights_own_flags_are_shown(night: Night) -> None:
    night.lab.ledger.log("flag", "rmsnorm: no campaign", night_id=night.night_id)
    assert "rmsnorm: no campaign" in text_of(night)


def test_a_lab_without_a_night_says_what_to_do(promoted: Night, tmp_path_factory: pytest.TempPathFactory) -> None:
    lab = make_lab(tmp_path_factory.mktemp("empty") / "lab")
    with pytest.raises(UserError, match="no night yet") as told:
        collect_report(lab)
    assert "nightshift night" in told.value.remedy
    lab.ledger.dispose()
    with pytest.raises(UserError, match="no such night"):
        collect_report(promoted.lab, 99)


def experiments(session: Session, kind: str = "") -> list[tables.Experiment]:
    rows = session.exec(select(tables.Experiment)).all()
    return [row for row in rows if kind in ("", row.kind)]


def reopen(night: Night, owner: str | None, heard_s: float) -> None:
    """Turn the night back into one that never ended, last heard of ``heard_s`` ago, its judgement held by ``owner``."""
    at = tables.now() - timedelta(seconds=heard_s)
    with night.lab.ledger.write() as session:
        row = session.get_one(tables.Night, night.night_id)
        row.status, row.ended_at, row.started_at, row.summary = "running", None, at, {}
        for e in experiments(session):
            e.started_at = e.heartbeat_at = e.ended_at = at
            if e.kind == "judge":
                e.status, e.result, e.finishes = "running" if owner else "queued", {}, 0
                e.owner = owner


def test_a_running_night_has_a_report(night: Night) -> None:
    reopen(night, process.identity(), heard_s=1000)
    report = collect_report(night.lab)
    assert report.status == "running"
    assert report.decision.headline == "undecided"
    assert "still running (the judgement)" in report.decision.sentence
    assert "Still running" in text_of(night)
    assert report_page(report)


def test_a_night_whose_process_died_is_called_crashed(night: Night) -> None:
    dead = process.identity().rsplit("/", 1)[0] + "/1"  # our pid with another start time
    reopen(night, dead, heard_s=1)
    report = collect_report(night.lab)
    assert report.status == "crashed"
    assert "stopped during the judgement" in report.decision.sentence
    assert "crashed" in text_of(night)


@pytest.mark.parametrize(("heard_s", "status"), [(5, "running"), (3600, "crashed")])
def test_between_two_steps_silence_decides(night: Night, heard_s: float, status: str) -> None:
    reopen(night, None, heard_s)
    with night.lab.ledger.read() as session:
        row = session.get_one(tables.Night, night.night_id)
        session.expunge(row)
    # the factory's events lie before the night's new start, so they do not count as signs of life
    assert night_status(night.lab, row) == collect_report(night.lab).status == status


def test_failed_training_is_told_with_its_error(night: Night) -> None:
    with night.lab.ledger.write() as session:
        for e in experiments(session):
            if e.kind == "judge":
                e.status, e.result = "queued", {}
            if e.kind == "posttrain":
                e.status, e.error, e.attempts = (
                    "failed",
                    "MemoryError: 8 GB",
                    3,
                )
    report = collect_report(night.lab)
    assert "post-training failed after 3 attempts: MemoryError: 8 GB" in report.decision.sentence
    assert any(i.status == "failed" and "8 GB" in i.detail for i in report.incidents)


def test_resumed_work_is_listed_once(promoted: Night) -> None:
    incidents = collect_report(promoted.lab).incidents
    assert [(i.what, i.status, i.attempts) for i in incidents] == [
        ("the night", "resumed", 2),
        ("posttrain chain_sum", "resumed", 2),
    ]
    assert "lost" in incidents[1].detail


def test_flags_name_what_must_not_be_overlooked(night: Night) -> None:
    with night.lab.ledger.write() as session:
        session.add(tables.Promotion(checkpoint_id=2, previous_id=1, by="Bob <b@x>", reason="demo day", override=True))
        patch = session.get_one(tables.Proposal, night.patches[0])
        patch.status, patch.flags = "merged", ["unmeasured"]
        for e in experiments(session, "judge"):
            checks = [{"check": "contamination", "passed": False, "detail": "2 rows are eval items"}]
            e.result = {**e.result, "integrity": checks}
        for e in experiments(session, "survey"):
            e.finishes = 2
    found = {f.code: f.text for f in collect_report(night.lab).flags}
    assert "demo day" in found["override"]
    assert "In force but unmeasured" in found["unmeasured"]
    assert "2 rows are eval items" in found["integrity"]
    assert "2 times" in found["repeated"]
    assert "kind boolean do not count: parent 51% right" in found["guard-not-counted"]
    assert "1 waiting patch is unmeasured" in found["unmeasured-waiting"]


def test_a_measured_patch_is_no_longer_flagged(night: Night) -> None:
    with night.lab.ledger.write() as session:
        for number in night.patches:
            session.get_one(tables.Proposal, number).level = "measured"
    codes = {f.code for f in collect_report(night.lab).flags}
    assert not codes & {"unmeasured", "unmeasured-waiting"}
