from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models

HELD = ("stopped", "organization_off", "organization_paused", "campaign_paused", "no_script", "dry_run")
ONE_OPEN_LEAD = models.UniqueConstraint(
    fields=["campaign", "phone"],
    condition=models.Q(is_only_of_phone=True) & ~models.Q(status="finished"),
    name="one_open_lead_per_phone",
)


class Migration(migrations.Migration):
    """Indexes, built while leads are written. No lead of before is in `one_open_lead_per_phone`, so duplicates that
    are there do not stop it. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("leads", "0002_dry_runs_and_duplicates")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS lead_held", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="lead",
            index=models.Index(
                fields=["campaign", "reason", "id"],
                condition=models.Q(status="backlog", reason__in=HELD),
                name="lead_held",
            ),
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.AddConstraint(model_name="lead", constraint=ONE_OPEN_LEAD)],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS one_open_lead_per_phone", migrations.RunSQL.noop
                ),
                migrations.RunSQL(
                    "CREATE UNIQUE INDEX CONCURRENTLY one_open_lead_per_phone ON leads_lead (campaign_id, phone)"
                    " WHERE is_only_of_phone AND NOT status = 'finished'",
                    "DROP INDEX CONCURRENTLY IF EXISTS one_open_lead_per_phone",
                ),
            ],
        ),
        RemoveIndexConcurrently(model_name="lead", name="lead_that_is_held"),
    ]
