"""Every log line of a piece of work has its context, and phone numbers are masked."""

from __future__ import annotations

import logging

import pytest
import structlog
from django.test import Client
from structlog.testing import LogCapture

from dispatch.core.observability import logging as dispatch_logging
from dispatch.jobs import tasks
from dispatch.jobs.models import Job
from tests.api.client import Api
from tests.support.tenants import ours, theirs, world

__all__ = ["ours", "theirs", "world"]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> LogCapture:
    """Capture what is logged while the test runs, with its context."""
    structlog.contextvars.clear_contextvars()  # context of earlier requests in this thread
    captured = LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, captured])
    yield captured
    structlog.configure(**before)


def test_log_context_of_a_job_ends_with_its_work(lines: LogCapture, monkeypatch: pytest.MonkeyPatch) -> None:
    log = structlog.get_logger("test")
    monkeypatch.setattr("dispatch.jobs.services.offer_next", lambda *args: log.info("inside"))
    tasks.offer_next(7, "token")
    log.info("outside")
    assert [(line["event"], line.get("job")) for line in lines.entries] == [("inside", 7), ("outside", None)]


@pytest.mark.django_db
def test_a_request_about_a_job_carries_both_ids(ours, lines: LogCapture, monkeypatch: pytest.MonkeyPatch) -> None:
    log = structlog.get_logger("test")
    monkeypatch.setattr("dispatch.jobs.services.pause", lambda *args, **kwargs: log.info("inside"))
    job = ours.row(Job)
    answer = Api(user=ours.admin).post(f"jobs/{job.pk}/pause/", {}, X_Request_ID="from-the-client-1")
    assert answer["X-Request-ID"] == "from-the-client-1"
    line = next(line for line in lines.entries if line["event"] == "inside")
    assert (line["request_id"], line["job"]) == ("from-the-client-1", job.pk)


def test_request_with_a_foreign_host_name_logs_a_warning_without_traceback(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.get("/sign-in/", headers={"host": "evil.example"}).status_code == 400
    (line,) = [record for record in caplog.records if record.name == "django.security.DisallowedHost"]
    assert (line.levelno, line.exc_info) == (logging.WARNING, None)
    assert "evil.example" in line.getMessage()


@pytest.mark.django_db
def test_a_body_of_too_many_fields_is_a_warning_without_a_trace(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.post("/admin/login/", {f"f{n}": 1 for n in range(2000)})
    assert answer.status_code == 400
    (line,) = [record for record in caplog.records if record.name == "django.security.TooManyFieldsSent"]
    assert (line.levelno, line.exc_info) == (logging.WARNING, None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "status"), [("/admin/accounts/user/add/", 403), ("/f/alphaville/?name=%00", 400)]
)
def test_a_refused_request_is_one_line(ours, caplog: pytest.LogCaptureFixture, path: str, status: int) -> None:
    browser = Client()
    ours.sign_in(browser, ours.dispatcher)
    assert browser.get(path).status_code == status
    (line,) = [record for record in caplog.records if record.name == "django.request"]
    assert (line.levelno, line.exc_info) == (logging.WARNING, None)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("calling +16025550123 now", "calling +1********23 now"),
        ("+4930123456", "+4*******56"),
        ("job 16025550123", "job 16025550123"),
        ("Forbidden: /join/eyJtZW1iZXJ:1xVQ:x7mv5c0/", "Forbidden: /join/…/"),
        ("GET /portal/0a1b/open/c0de:s1g/ 429", "GET /portal/0a1b/open/…/ 429"),
        ("/set-password/MTI/c0de-s1g/?next=/", "/set-password/MTI/…/?next=/"),
        ("Too Many Requests: /calendars/c0de.ics", "Too Many Requests: /calendars/…"),
    ],
)
def test_numbers_and_secrets_of_links_are_masked(said: str, shown: str) -> None:
    assert dispatch_logging.mask_text(said) == shown
