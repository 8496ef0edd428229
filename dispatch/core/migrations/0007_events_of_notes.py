from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import F, Q
from django.db.models.fields.json import KeyTransform


class Migration(migrations.Migration):
    # The index is built without blocking writes.
    atomic = False

    dependencies = [
        ("core", "0006_write_probe"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="event",
            index=models.Index(
                F("subject_id"),
                KeyTransform("note_id", "data"),
                condition=Q(kind__in=["job.note_written", "job.note_deleted"]),
                name="event_of_note",
            ),
        ),
    ]
