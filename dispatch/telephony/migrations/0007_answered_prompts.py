from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telephony", "0006_customer_texts"),
    ]

    operations = [
        migrations.AddField(
            model_name="inboundcall",
            name="answered_prompts",
            field=models.JSONField(
                blank=True,
                db_default=models.Value([], models.JSONField()),
                default=list,
                help_text="The latest answers to prompts, so that each counts once: identity and time of arrival.",
            ),
        ),
    ]
