from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Indexes that find open jobs of a customer, built while jobs are written. What an interrupted build left is
    dropped first.
    """

    atomic = False
    dependencies = [("jobs", "0004_people")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_open_by_phone", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(ended_at=None),
                fields=["organization", "customer_phone"],
                name="job_open_by_phone",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_open_by_address", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(ended_at=None) & ~models.Q(address_key=""),
                fields=["organization", "address_key"],
                name="job_open_by_address",
            ),
        ),
    ]
