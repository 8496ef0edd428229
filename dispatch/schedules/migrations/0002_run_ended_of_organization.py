from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """The index is built while runs are written. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("schedules", "0001_initial")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_ended_of_organization", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                fields=["organization", "ended_at"],
                condition=models.Q(ended_at__isnull=False),
                name="run_ended_of_organization",
            ),
        ),
        RemoveIndexConcurrently(model_name="run", name="run_ended"),
    ]
