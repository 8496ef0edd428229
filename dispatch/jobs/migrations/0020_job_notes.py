import dispatch.core.clock
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    """Create the table of notes on jobs."""

    dependencies = [
        ("accounts", "0013_handover_notes"),
        ("jobs", "0019_planned_times_w"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobNote",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("author_label", models.CharField(max_length=200)),
                ("text", models.TextField(max_length=2000)),
                ("mentions", models.JSONField(default=list)),
                ("written_at", models.DateTimeField(default=dispatch.core.clock.now)),
                (
                    "author",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="written_notes", to="jobs.job"
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "verbose_name": "job note",
                "ordering": ["id"],
            },
        ),
    ]
