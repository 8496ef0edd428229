import dispatch.core.clock
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0012_user_language_e"),
    ]

    operations = [
        migrations.CreateModel(
            name="HandoverNote",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("text", models.TextField(max_length=2000)),
                ("written_at", models.DateTimeField(default=dispatch.core.clock.now)),
                ("first_read_at", models.DateTimeField(null=True)),
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
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "verbose_name": "hand-over note",
                "ordering": ["written_at", "pk"],
            },
        ),
        migrations.CreateModel(
            name="HandoverReading",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("read_at", models.DateTimeField(default=dispatch.core.clock.now)),
                (
                    "note",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="readings",
                        to="accounts.handovernote",
                    ),
                ),
                (
                    "reader",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "ordering": ["read_at", "pk"],
            },
        ),
        migrations.AddIndex(
            model_name="handovernote",
            index=models.Index(fields=["organization", "written_at"], name="handover_notes_by_time"),
        ),
        migrations.AddConstraint(
            model_name="handoverreading",
            constraint=models.UniqueConstraint(fields=("note", "reader"), name="one_reading_per_person"),
        ),
    ]
