import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Write candidates without checking each technician and without an index on them: nothing needs either.

    Not in one transaction, so that each change locks the tables only for itself.
    """

    atomic = False
    dependencies = [
        ("jobs", "0024_polled_jobs_of_a_pool"),
        ("technicians", "0004_planned_times_w"),
    ]

    operations = [
        migrations.AlterField(
            model_name="candidate",
            name="technician",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="technicians.technician",
            ),
        ),
    ]
