from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

# The customers of the calls that a rate still counts.
RECENT_CALLS = """
UPDATE telephony_call c SET customer = r.customer
FROM leads_lead l, leads_campaign k, leads_customerrate r
WHERE c.purpose = 'lead' AND c.customer = '' AND l.id = c.subject_id AND k.id = l.campaign_id
  AND r.organization_id = c.organization_id AND r.customer = COALESCE(NULLIF(l.customer, ''), k.customer)
  AND c.requested_at > now() - make_interval(secs => r.per_s)
"""


def _index(model: str, index: models.Index) -> list[Any]:
    return [
        migrations.RunSQL(f"DROP INDEX CONCURRENTLY IF EXISTS {index.name}", migrations.RunSQL.noop),
        AddIndexConcurrently(model_name=model, index=index),
    ]


class Migration(migrations.Migration):
    """The indexes are built while rows are written. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("leads", "0006_counters_of_leads"), ("telephony", "0013_indexes_of_calls")]

    operations = [
        *_index("lead", models.Index(fields=["organization", "-id"], name="lead_newest")),
        *_index(
            "lead",
            models.Index(
                condition=models.Q(("status", "finished")),
                fields=["organization", "finished_at"],
                name="lead_finished",
            ),
        ),
        *_index(
            "lead",
            models.Index(
                condition=models.Q(("reason", "customer_rate"), ("status", "backlog")),
                fields=["campaign", "due_at"],
                name="lead_in_rate_queue",
            ),
        ),
        migrations.RunSQL(RECENT_CALLS, migrations.RunSQL.noop),
    ]
