from django.db import migrations, models

import dispatch.core.voices


class Migration(migrations.Migration):
    """Columns that processes of the previous version may leave out."""

    dependencies = [
        ("accounts", "0003_distance_unit_label"),
    ]

    operations = [
        migrations.AddField(
            model_name="organization",
            name="language",
            field=models.CharField(
                choices=[("en", "English"), ("es", "Spanish")],
                db_default="en",
                default="en",
                help_text="Of calls and texts to technicians and customers. A technician or campaign may use another one.",
                max_length=2,
            ),
        ),
        migrations.AddField(
            model_name="organization",
            name="voice",
            field=models.CharField(
                choices=dispatch.core.voices.voice_choices,
                db_default="Polly.Joanna-Neural",
                default="Polly.Joanna-Neural",
                help_text="It must speak the language.",
                max_length=64,
            ),
        ),
    ]
