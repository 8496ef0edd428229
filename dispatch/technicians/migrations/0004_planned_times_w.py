import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    """Store when the open jobs of a technician take place. The jobs slice has the trigger that maintains it."""

    dependencies = [("technicians", "0003_language_and_voice")]

    operations = [
        migrations.AlterField(
            model_name="technician",
            name="max_open_jobs",
            field=models.PositiveSmallIntegerField(
                default=1,
                help_text="At the same time: open jobs with an arrival window at another time don't count.",
            ),
        ),
        migrations.AddField(
            model_name="technician",
            name="planned_times",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=django.contrib.postgres.fields.DateTimeRangeField(),
                editable=False,
                null=True,
                size=None,
            ),
        ),
    ]
