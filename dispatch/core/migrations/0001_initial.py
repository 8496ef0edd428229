import dispatch.core.clock
import dispatch.core.models
import django.contrib.postgres.indexes
import django.db.models.functions.comparison
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="EventCursor",
            fields=[
                ("name", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("xid", models.BigIntegerField(default=0)),
                ("event_id", models.BigIntegerField(default=0)),
                ("moved_at", models.DateTimeField(default=dispatch.core.clock.now)),
            ],
        ),
        migrations.CreateModel(
            name="Leadership",
            fields=[
                ("name", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("holder", models.CharField(max_length=128)),
                ("epoch", models.BigIntegerField(default=1)),
                ("expires_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "xid",
                    models.BigIntegerField(
                        db_default=django.db.models.functions.comparison.Cast(
                            django.db.models.functions.comparison.Cast(
                                dispatch.core.models.TransactionId(), models.TextField()
                            ),
                            models.BigIntegerField(),
                        ),
                        editable=False,
                    ),
                ),
                ("organization_id", models.BigIntegerField()),
                ("kind", models.CharField(max_length=64)),
                ("subject_type", models.CharField(max_length=32)),
                ("subject_id", models.BigIntegerField()),
                ("actor_type", models.CharField(default="system", max_length=32)),
                ("actor_id", models.BigIntegerField(null=True)),
                ("actor_label", models.CharField(default="Dispatch", max_length=120)),
                ("data", models.JSONField(default=dict)),
                ("at", models.DateTimeField(default=dispatch.core.clock.now)),
            ],
            options={
                "indexes": [
                    models.Index(fields=["xid", "id"], name="event_read_order"),
                    models.Index(fields=["subject_type", "subject_id", "id"], name="event_of_subject"),
                    models.Index(fields=["organization_id", "id"], name="event_of_organization"),
                    django.contrib.postgres.indexes.BrinIndex(fields=["at"], name="event_at"),
                ],
            },
        ),
        migrations.CreateModel(
            name="RememberedAnswer",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("organization_id", models.BigIntegerField()),
                ("endpoint", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=255)),
                ("body_hash", models.CharField(max_length=64)),
                ("status_code", models.PositiveSmallIntegerField()),
                (
                    "body",
                    models.TextField(help_text="JSON, its members in the order in which they were answered."),
                ),
                ("created_at", models.DateTimeField(db_index=True, default=dispatch.core.clock.now)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization_id", "endpoint", "key"), name="one_answer_per_key"
                    )
                ],
            },
        ),
    ]
