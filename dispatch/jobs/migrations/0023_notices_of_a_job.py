import django.db.models.deletion
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Find the last and the open notices of a job that has very many.

    Django would also drop other indexes on the column, so the statement is given here. Not in one transaction, so
    that no table is locked.
    """

    atomic = False
    dependencies = [("jobs", "0022_references_of_few_jobs")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS notice_of_job", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="techniciannotice",
            index=models.Index(fields=["job", "id"], name="notice_of_job"),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS open_notice_of_job", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="techniciannotice",
            index=models.Index(
                condition=models.Q(("status__in", ("sending", "unreached"))),
                fields=["job"],
                name="open_notice_of_job",
            ),
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="techniciannotice",
                    name="job",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notices",
                        to="jobs.job",
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS jobs_techniciannotice_job_id_2e215748",
                    "CREATE INDEX CONCURRENTLY jobs_techniciannotice_job_id_2e215748"
                    " ON jobs_techniciannotice (job_id)",
                ),
            ],
        ),
    ]
