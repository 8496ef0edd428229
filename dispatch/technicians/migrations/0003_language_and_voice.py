from django.db import migrations, models

import dispatch.core.voices


class Migration(migrations.Migration):
    """Columns that processes of the previous version may leave out."""

    dependencies = [
        ("technicians", "0002_people"),
    ]

    operations = [
        migrations.AddField(
            model_name="technician",
            name="language",
            field=models.CharField(
                blank=True,
                choices=[("en", "English"), ("es", "Spanish")],
                db_default="",
                default="",
                help_text="Of their calls and texts. Leave empty to use the organization's.",
                max_length=2,
            ),
        ),
        migrations.AddField(
            model_name="technician",
            name="voice",
            field=models.CharField(
                blank=True,
                choices=dispatch.core.voices.voice_choices,
                db_default="",
                default="",
                help_text="It must speak their language. Leave empty to use the organization's.",
                max_length=64,
            ),
        ),
    ]
