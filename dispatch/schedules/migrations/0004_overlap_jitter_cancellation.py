import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

import dispatch.core.clock


class Migration(migrations.Migration):
    """The new columns have no CHECK: PostgreSQL would read the whole table to validate it, while nobody can use it."""

    dependencies = [
        ("accounts", "0001_initial"),
        ("schedules", "0003_canceled_label"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="cancel_requested_at",
            field=models.DateTimeField(
                help_text="When its cancellation was requested while a worker was executing it.", null=True
            ),
        ),
        migrations.AddField(
            model_name="schedule",
            name="jitter_s",
            field=models.IntegerField(
                db_default=0,
                default=0,
                help_text="Delay each occurrence by up to this many seconds. An occurrence always has the same delay.",
                validators=[django.core.validators.MinValueValidator(0)],
                verbose_name="jitter (s)",
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="overlap",
            field=models.CharField(
                choices=[
                    ("allow", "Run in parallel"),
                    ("skip", "Skip while an earlier run is in progress"),
                    ("buffer_one", "Run once more after the earlier run"),
                    ("cancel_other", "Cancel the earlier run"),
                ],
                default="allow",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="runreport",
            name="outcome",
            field=models.CharField(
                choices=[
                    ("succeeded", "Succeeded"),
                    ("failed", "Failed"),
                    ("refused", "Refused"),
                    ("cancelled", "Canceled"),
                ],
                max_length=16,
            ),
        ),
        migrations.CreateModel(
            name="ScheduleFeed",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("name", models.CharField(help_text="Who or what uses the link.", max_length=80)),
                ("created_at", models.DateTimeField(default=dispatch.core.clock.now, editable=False)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "verbose_name": "calendar feed",
            },
        ),
        migrations.CreateModel(
            name="ZoneRules",
            fields=[
                ("zone", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("digest", models.CharField(max_length=64)),
            ],
        ),
    ]
