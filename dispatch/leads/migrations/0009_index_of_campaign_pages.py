from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """The index is built while rows are written. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("leads", "0008_branches_and_dispositions")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS lead_newest_of_campaign", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="lead", index=models.Index(fields=["campaign", "-id"], name="lead_newest_of_campaign")
        ),
    ]
