import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    """The new columns have no CHECK: PostgreSQL would read the whole table to validate it, while nobody can use it."""

    dependencies = [("jobs", "0005_duplicate_indexes")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="late_minutes",
            field=models.SmallIntegerField(
                help_text="By how many minutes the technician is late, as they last reported.",
                null=True,
                validators=[django.core.validators.MinValueValidator(0)],
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="late_reported_at",
            field=models.DateTimeField(help_text="When they reported it.", null=True),
        ),
    ]
