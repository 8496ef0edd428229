import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    """The new column has no CHECK: PostgreSQL would read the whole table to validate it, while nobody can use it."""

    dependencies = [
        ("telephony", "0002_callevent_next_action_at"),
    ]

    operations = [
        migrations.AddField(
            model_name="call",
            name="priority",
            field=models.SmallIntegerField(
                db_default=3,
                default=3,
                help_text="Calls of one purpose are placed in this order: 1 first.",
                validators=[django.core.validators.MinValueValidator(0)],
            ),
        ),
    ]
