import django.db.models.deletion
from django.db import migrations, models

OFFERS_OF_JOB = "jobs_offer_job_id_f4d92c51"  # as Django names it


class Migration(migrations.Migration):
    """Drop indexes that are prefixes of others, and two checks of each candidate.

    Not in one transaction, so that each table is locked only for its own change.
    """

    atomic = False
    dependencies = [
        ("accounts", "0013_handover_notes"),
        ("jobs", "0020_job_notes"),
    ]

    operations = [
        migrations.AlterField(
            model_name="candidate",
            name="job",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="candidates",
                to="jobs.job",
            ),
        ),
        migrations.AlterField(
            model_name="candidate",
            name="organization",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="accounts.organization",
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="organization",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="accounts.organization",
            ),
        ),
        # Django would drop every index on this column alone, also the one that allows one accepted offer.
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="offer",
                    name="job",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="offers",
                        to="jobs.job",
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(
                    f"DROP INDEX CONCURRENTLY IF EXISTS {OFFERS_OF_JOB}",
                    f"CREATE INDEX CONCURRENTLY {OFFERS_OF_JOB} ON jobs_offer (job_id)",
                ),
            ],
        ),
        migrations.AlterField(
            model_name="submission",
            name="organization",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="accounts.organization",
            ),
        ),
    ]
