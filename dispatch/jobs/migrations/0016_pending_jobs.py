from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find the jobs that an outage or a spending cap stopped. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("jobs", "0015_customer_language_and_end")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_pending_for", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status", "pending")),
                fields=["pending_reason", "organization"],
                name="job_pending_for",
            ),
        ),
    ]
