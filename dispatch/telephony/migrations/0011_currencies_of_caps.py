import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telephony", "0010_indexes_of_prices"),
    ]

    operations = [
        migrations.AlterField(
            model_name="spendcap",
            name="currency",
            field=models.CharField(
                default="USD",
                help_text="The currency in which the phone provider bills. The cap counts only amounts in this currency: "
                "amounts in others are not converted.",
                max_length=3,
                validators=[
                    django.core.validators.RegexValidator(
                        "^[A-Z]{3}\\Z", "Enter three capital letters, such as USD."
                    )
                ],
            ),
        ),
        migrations.AlterField(
            model_name="spendcap",
            name="other_currencies",
            field=models.CharField(
                blank=True,
                default="",
                editable=False,
                help_text="What was spent today in other currencies, which the cap does not count.",
                max_length=64,
            ),
        ),
    ]
