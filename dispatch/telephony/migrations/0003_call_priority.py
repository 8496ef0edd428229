from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telephony", "0002_callevent_next_action_at"),
    ]

    operations = [
        migrations.AddField(
            model_name="call",
            name="priority",
            field=models.PositiveSmallIntegerField(
                db_default=3, default=3, help_text="Calls of one purpose are placed in this order: 1 first."
            ),
        ),
    ]
