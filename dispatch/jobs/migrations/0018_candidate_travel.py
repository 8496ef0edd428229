from django.db import migrations, models


class Migration(migrations.Migration):
    """Store the drive of each candidate."""

    dependencies = [("jobs", "0017_due_in_turn")]

    operations = [
        migrations.AddField(
            model_name="candidate",
            name="travel_s",
            field=models.IntegerField(help_text="Drive by road, in seconds; empty: unknown.", null=True),
        ),
    ]
