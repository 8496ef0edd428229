from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find a customer's earlier jobs. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("jobs", "0012_deferred_notices")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_by_phone", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(fields=["organization", "customer_phone", "-id"], name="job_by_phone"),
        ),
    ]
