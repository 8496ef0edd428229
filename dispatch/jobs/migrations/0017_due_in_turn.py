from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find a batch of overdue submissions and jobs without sorting them all.

    What an interrupted build left is dropped first.
    """

    atomic = False
    dependencies = [("jobs", "0016_pending_jobs")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS submission_in_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="submission",
            index=models.Index(
                condition=models.Q(("status", "received")),
                fields=["organization", "next_start_at"],
                name="submission_in_turn",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_in_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status", "dispatching")),
                fields=["organization", "next_action_at"],
                name="job_in_turn",
            ),
        ),
    ]
