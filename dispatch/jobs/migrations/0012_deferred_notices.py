from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0011_spend_cap"),
    ]

    operations = [
        migrations.AddField(
            model_name="techniciannotice",
            name="begins_at",
            field=models.DateTimeField(
                help_text="When the work, or the trip to it, began or should begin, if known.", null=True
            ),
        ),
        migrations.AddField(
            model_name="techniciannotice",
            name="deferred_until",
            field=models.DateTimeField(
                help_text="The end of the quiet hours that the notice waits for.", null=True
            ),
        ),
    ]
