"""Hand-written SQL for submissions: who sends one, and its start."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from django.db.models import Model

from accounts.models import ApiKey, Organization
from dispatch.core.db import fast_rows, prepared
from dispatch.core.db.instances import stored_instance
from dispatch.jobs.models import ServiceType, Submission

# Claim one start of a submission: the first immediately, later ones when due. A locked submission is skipped. The
# commit does not wait for the disk (synchronous_commit = off).
_CLAIM_START = """
UPDATE jobs_submission SET starts = starts + 1, next_start_at = %(until)s
WHERE id = (
    SELECT id FROM jobs_submission
    WHERE id = %(id)s AND status = 'received' AND (starts = 0 OR next_start_at <= %(now)s)
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING set_config('synchronous_commit', 'off', true)
"""
_PROCESSED = """
UPDATE jobs_submission SET status = 'processed', next_start_at = NULL WHERE id = %s AND status = 'received'
"""
# The first start of a submission whose position is known: claimed and processed at once.
_TAKE = """
UPDATE jobs_submission t SET starts = 1, status = 'processed', next_start_at = NULL
FROM accounts_organization r1
WHERE r1.id = t.organization_id AND t.id = (
    SELECT id FROM jobs_submission
    WHERE id = %s AND status = 'received' AND starts = 0 AND lat IS NOT NULL AND lng IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
"""


def _some_columns(model: type[Model], alias: str, *names: str) -> tuple[list[str], str]:
    """Return these fields in the model's order, as attributes and as columns for SELECT."""
    fields = [field for field in model._meta.concrete_fields if field.attname in names]
    return [field.attname for field in fields], ", ".join(f"{alias}.{field.column}" for field in fields)


_KEY, _KEY_COLUMNS = _some_columns(
    ApiKey, "k", "id", "organization_id", "name", "prefix", "secret_hash", "scopes", "expires_at", "revoked_at",
    "last_used_at",
)  # fmt: skip
_OWNER, _OWNER_COLUMNS = _some_columns(Organization, "o", "id", "is_active", "default_region")
_SERVICE, _SERVICE_COLUMNS = _some_columns(ServiceType, "s", "id", "organization_id", "name")
_FIND_SENDER = f"""
SELECT nextval(pg_get_serial_sequence('jobs_submission', 'id')),
       {_KEY_COLUMNS}, {_OWNER_COLUMNS}, {_SERVICE_COLUMNS}
FROM accounts_apikey k
JOIN accounts_organization o ON o.id = k.organization_id
LEFT JOIN jobs_servicetype s ON s.organization_id = k.organization_id AND s.code = %s AND s.is_active
WHERE k.prefix = %s
"""


class Sender(NamedTuple):
    """A caller who may want to submit a form. The rows have only the fields that this needs.

    `submission_id` is a new id. `service_type` is None if the organization has no active one with that code.
    """

    submission_id: int
    api_key: ApiKey
    service_type: ServiceType | None


def find_sender(key_prefix: str, service_code: str) -> Sender | None:
    """Return the API key with its organization and the service type, with a new id for a submission.

    None if there is no such key. Its secret is not verified yet.
    """
    rows = prepared.fetch_all(_FIND_SENDER, [service_code, key_prefix])
    if not rows:
        return None
    submission_id, *values = rows[0]
    owner_from, service_from = len(_KEY), len(_KEY) + len(_OWNER)
    api_key = stored_instance(ApiKey, _KEY, values[:owner_from])
    api_key.organization = stored_instance(Organization, _OWNER, values[owner_from:service_from])
    service = values[service_from:]
    found = stored_instance(ServiceType, _SERVICE, service) if service[0] is not None else None
    return Sender(submission_id, api_key, found)


def claim_start(submission_id: int, now: datetime, until: datetime) -> bool:
    """Claim a start of the submission until `until`, and count it.

    Return False if no start is due or another worker has claimed it.
    """
    return bool(prepared.execute_rowcount(_CLAIM_START, {"id": submission_id, "now": now, "until": until}))


def take_submission(submission_id: int) -> Submission | None:
    """Mark a submission with a position processed, in its first start. Return it, with its organization.

    None if it was started before, or another transaction has it.
    """
    return fast_rows.fetch_changed(Submission, _TAKE, [submission_id], "organization")


def mark_submission_processed(submission_id: int) -> bool:
    """Mark the submission processed. Return False if it already was."""
    return bool(prepared.execute_rowcount(_PROCESSED, [submission_id]))
