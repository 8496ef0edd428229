from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0005_duplicate_indexes")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="late_minutes",
            field=models.PositiveSmallIntegerField(
                help_text="By how many minutes the technician is late, as they last reported.", null=True
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="late_reported_at",
            field=models.DateTimeField(help_text="When they reported it.", null=True),
        ),
    ]
