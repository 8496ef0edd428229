from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    # The index is built without blocking writes.
    atomic = False

    dependencies = [
        ("telephony", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="callevent",
            name="next_action_at",
            field=models.DateTimeField(
                blank=True,
                help_text="When the loop applies a pressed key, unless its webhook has.",
                null=True,
            ),
        ),
        AddIndexConcurrently(
            model_name="callevent",
            index=models.Index(
                condition=models.Q(("next_action_at__isnull", False)),
                fields=["next_action_at"],
                name="pressed_key_to_act_on",
            ),
        ),
    ]
