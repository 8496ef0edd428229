from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telephony", "0008_prices_and_spend_caps"),
    ]

    operations = [
        migrations.AddField(
            model_name="call",
            name="hang_up_at",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="When the provider is next asked to end it.",
                null=True,
            ),
        ),
    ]
