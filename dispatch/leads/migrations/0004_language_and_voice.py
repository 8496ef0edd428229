from django.db import migrations, models

import dispatch.core.voices


class Migration(migrations.Migration):
    """Columns that processes of the previous version may leave out."""

    dependencies = [
        ("leads", "0003_dry_run_and_duplicate_indexes"),
    ]

    operations = [
        migrations.AddField(
            model_name="campaign",
            name="language",
            field=models.CharField(
                blank=True,
                choices=[("en", "English"), ("es", "Spanish")],
                db_default="",
                default="",
                help_text="Of the script. Leave empty for the organization's.",
                max_length=2,
            ),
        ),
        migrations.AddField(
            model_name="campaign",
            name="voice",
            field=models.CharField(
                blank=True,
                choices=dispatch.core.voices.voice_choices,
                db_default="",
                default="",
                help_text="It must speak the language of the script. Leave empty for the organization's.",
                max_length=64,
            ),
        ),
    ]
