from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


DUPLICATES = "jobs_job_duplicate_of_id_cc88cd78"  # as Django names it


class Migration(migrations.Migration):
    """Indexes of jobs, built while jobs are written. What an interrupted build left is dropped first."""

    atomic = False
    dependencies = [("jobs", "0004_people")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_on_trial", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(condition=models.Q(("is_trial", True)), fields=["id"], name="job_on_trial"),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_to_remind_of", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("attention_at__isnull", False), ("reminded_at", None)),
                fields=["attention_at"],
                name="job_to_remind_of",
            ),
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="job",
                    name="duplicate_of",
                    field=models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=models.SET_NULL,
                        related_name="duplicates",
                        to="jobs.job",
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(f"DROP INDEX CONCURRENTLY IF EXISTS {DUPLICATES}", migrations.RunSQL.noop),
                migrations.RunSQL(
                    f"CREATE INDEX CONCURRENTLY {DUPLICATES} ON jobs_job (duplicate_of_id)",
                    f"DROP INDEX CONCURRENTLY {DUPLICATES}",
                ),
            ],
        ),
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
