from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0004_language_and_voice"),
    ]

    operations = [
        migrations.AddField(
            model_name="user",
            name="tour_dismissed_at",
            field=models.DateTimeField(
                editable=False, help_text="When they dismissed the tour of the board.", null=True
            ),
        ),
    ]
