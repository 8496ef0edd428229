from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telephony", "0011_currencies_of_caps")]

    operations = [
        migrations.AddField(
            model_name="call",
            name="customer",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The customer on whose behalf it calls, for rate limits.",
                max_length=64,
            ),
        ),
    ]
