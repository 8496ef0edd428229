from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """The index is built while rows are written. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("leads", "0005_canceled_label")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS lead_finished", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="lead",
            index=models.Index(
                condition=models.Q(("status", "finished")),
                fields=["organization", "finished_at"],
                name="lead_finished",
            ),
        ),
    ]
