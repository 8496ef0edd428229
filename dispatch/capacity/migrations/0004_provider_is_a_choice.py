"""An account's provider is one of those that are known; nothing changes in the table."""

from django.db import migrations, models

import dispatch.capacity.providers


class Migration(migrations.Migration):
    dependencies = [("capacity", "0003_texts")]

    operations = [
        migrations.AlterField(
            model_name="provideraccount",
            name="provider",
            field=models.CharField(choices=dispatch.capacity.providers.choices, default="twilio", max_length=32),
        ),
    ]
