"""The pages of `nightshift serve`: nights, reports, the review queue, one proposal with its diff. Loopback only.

Read-only: nothing here decides or merges; the pages name the command that does. Requests must name a loopback host (so
a page of another site cannot reach in by its own name), answers forbid scripts, frames and foreign content.
Not covered: users and logins. Whoever has a shell on this machine may read.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sqlmodel import col, select

from review import words
from review.html import next_run_words, render, report_page
from review.items import Item, diff_of, list_items, show_item
from review.report import collect_report, next_run, night_status, nights, schedule_of
from workspace import tables
from workspace.errors import NightshiftError, UserError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

    from workspace.lab import Lab

HOSTS = ["127.0.0.1", "localhost", "::1", "[::1]"]
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MAX_DIFF_CHARS = 200_000


def require_loopback(host: str) -> str:
    """``host`` if it is this machine only; UserError otherwise: the pages have no login."""
    try:
        inside = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise UserError(
            "the pages are served to this machine only", field="serve.host", value=host, allowed="127.0.0.1"
        )
    return host


def create_app(lab: Lab) -> FastAPI:
    """The application for one lab; serve it with uvicorn on a loopback address."""
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse, PlainTextResponse
    from starlette.exceptions import HTTPException

    app = FastAPI(title="Nightshift", docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if _host(request.headers.get("host", "")) not in HOSTS:
            return PlainTextResponse("this host is not served\n", status_code=400)
        response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(NightshiftError)
    def told(_request: Request, error: NightshiftError) -> HTMLResponse:
        found = isinstance(error, UserError)
        title = "Not found" if found else "Not available"
        text = f"{error.message}. {error.remedy}"
        return HTMLResponse(render("error.html", links=True, title=title, message=text), 404 if found else 503)

    @app.exception_handler(HTTPException)
    def missing(_request: Request, error: HTTPException) -> HTMLResponse:
        page = render("error.html", links=True, title="Not found", message="There is no such page.")
        return HTMLResponse(page, error.status_code)

    _add_routes(app, lab)
    return app


def _add_routes(app: FastAPI, lab: Lab) -> None:
    from fastapi.responses import HTMLResponse, JSONResponse

    @app.get("/health")
    def health() -> JSONResponse:
        return JSONResponse({"status": "ok", "lab": lab.root.name, "ledger": lab.ledger.revision()})

    @app.get("/", response_class=HTMLResponse)
    def index() -> str:
        return index_page(lab)

    @app.get("/nights/{number}", response_class=HTMLResponse)
    def night(number: int) -> str:
        return report_page(collect_report(lab, number), links=True)

    @app.get("/reviews", response_class=HTMLResponse)
    def reviews(everything: bool = False) -> str:
        return render("queue.html", links=True, lab=lab.root.name, items=list_items(lab, everything=everything))

    @app.get("/reviews/{number}", response_class=HTMLResponse)
    def proposal(number: int) -> str:
        return proposal_page(lab, number)


def _host(header: str) -> str:
    """The host of a Host header, without its port."""
    if header.startswith("["):
        return header[: header.find("]") + 1]
    return header.rsplit(":", 1)[0] if header.count(":") == 1 else header


def index_page(lab: Lab) -> str:
    """All nights, the newest first, with the verdict of each."""
    with lab.ledger.read() as session:
        found = session.exec(
            select(tables.Verdict.night_id, tables.Verdict.decision)
            .where(col(tables.Verdict.decision).in_(("promote", "reject", "inconclusive")))
            .order_by(col(tables.Verdict.id))
        ).all()
    decisions = dict(found)
    rows = [_night_row(lab, night, decisions.get(night.id)) for night in nights(lab)]
    cron, zone = schedule_of(lab)
    text = f"Next night: {next_run_words(cron, next_run(cron, tables.now(), zone))}."
    return render("index.html", links=True, lab=lab.root.name, rows=rows, next_run=text)


def _night_row(lab: Lab, night: tables.Night, decision: str | None) -> dict[str, Any]:
    took_s = (night.ended_at - night.started_at).total_seconds() if night.ended_at else None
    return {
        "id": night.id,
        "started": f"{night.started_at:%a %d %b %Y, %H:%M} UTC",
        "status": night_status(lab, night),
        "decision": decision or "none",
        "took": words.duration(took_s),
    }


def proposal_page(lab: Lab, number: int) -> str:
    """One proposal: figures, evidence, decisions so far, the coloured diff."""
    from markupsafe import Markup

    item = show_item(lab, number)
    scores = ""
    if item.decision is not None and any(c.is_share for c in item.decision.claims):
        from review.plots import eval_scores

        scores = eval_scores(item.decision.claims, item.decision.kinds)
    readable = bool(item.branch and item.base and item.tip)
    return render(
        "proposal.html",
        links=True,
        lab=lab.root.name,
        p=item,
        facts=facts_of(item),
        scores=Markup(scores),  # noqa: S704 - our own SVG, its texts are escaped
        diff=Markup(coloured(diff_of(lab, number))) if readable else "",  # noqa: S704 - escaped by Pygments
    )


def facts_of(item: Item) -> list[tuple[str, str]]:
    """Name and value of everything that a reviewer may want to check; also used by `review show`."""
    level = item.level or "none"
    if item.level in ("parsed", "interpreted", "compiled"):
        level += " (unmeasured)"
    facts = [
        ("Kind", item.kind),
        ("For", item.slot),
        ("Author", item.author),
        ("Evidence", level if item.kind == "kernel" else ""),
        ("Verdict", item.verdict),
        ("Judge", words.short(item.judge)),
        ("Candidate", words.short(item.candidate)),
        ("Checkpoint", f"{item.checkpoint} {words.short(item.head)}" if item.checkpoint else ""),
        ("Branch", item.branch),
        ("Commit", words.short(item.tip) + (" (moved since it was judged or approved)" if item.moved else "")),
        ("Merged as", words.short(item.merge_commit)),
    ]
    return [(name, value) for name, value in facts if value]


def coloured(diff: str) -> str:
    """A unified diff as HTML; very long ones are cut and say so."""
    from pygments import highlight  # type: ignore[import-untyped,unused-ignore]
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped,unused-ignore]
    from pygments.lexers import DiffLexer  # type: ignore[import-untyped,unused-ignore]

    cut = len(diff) > MAX_DIFF_CHARS
    body = highlight(diff[:MAX_DIFF_CHARS], DiffLexer(), HtmlFormatter(nowrap=True))
    end = "\n\u2026 cut here; nightshift review diff shows all of it" if cut else ""
    return f'<pre tabindex="0" aria-label="Diff">{body}{end}</pre>'
