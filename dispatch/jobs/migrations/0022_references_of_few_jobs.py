import django.db.models.deletion
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Index the references of only those jobs that have one.

    Django would also drop other indexes on these columns, so the statements are given here. Not in one
    transaction, so that no table is locked.
    """

    atomic = False
    dependencies = [
        ("capacity", "0004_fallback_and_rest"),
        ("jobs", "0021_fewer_indexes"),
        ("technicians", "0004_planned_times_w"),
    ]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_of_technician", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("technician__isnull", False)), fields=["technician"], name="job_of_technician"
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_with_duplicates", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("duplicate_of__isnull", False)),
                fields=["duplicate_of"],
                name="job_with_duplicates",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_waiting_for_pool", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("line_pool__isnull", False)), fields=["line_pool"], name="job_waiting_for_pool"
            ),
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="job",
                    name="technician",
                    field=models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="jobs",
                        to="technicians.technician",
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS jobs_job_technician_id_5a9620c3",
                    "CREATE INDEX CONCURRENTLY jobs_job_technician_id_5a9620c3 ON jobs_job (technician_id)",
                ),
            ],
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="job",
                    name="duplicate_of",
                    field=models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="duplicates",
                        to="jobs.job",
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS jobs_job_duplicate_of_id_cc88cd78",
                    "CREATE INDEX CONCURRENTLY jobs_job_duplicate_of_id_cc88cd78 ON jobs_job (duplicate_of_id)",
                ),
            ],
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="job",
                    name="line_pool",
                    field=models.ForeignKey(
                        db_index=False,
                        help_text="Pool that the job waits for.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="capacity.dispatchpool",
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS jobs_job_line_pool_id_ffa0ebf6",
                    "CREATE INDEX CONCURRENTLY jobs_job_line_pool_id_ffa0ebf6 ON jobs_job (line_pool_id)",
                ),
            ],
        ),
    ]
