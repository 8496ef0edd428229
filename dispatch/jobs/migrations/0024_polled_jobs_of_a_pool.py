from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find the jobs that are polled for a line of a pool. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("jobs", "0023_notices_of_a_job")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_polled_for_pool", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                fields=["line_pool", "next_action_at"],
                condition=models.Q(line_pool__isnull=False),
                name="job_polled_for_pool",
            ),
        ),
        RemoveIndexConcurrently(model_name="job", name="job_waiting_for_pool"),
    ]
