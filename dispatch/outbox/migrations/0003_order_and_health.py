from django.db import migrations, models

import dispatch.core.crypto


class Migration(migrations.Migration):
    dependencies = [("outbox", "0002_target_failures")]

    operations = [
        migrations.AddField(
            model_name="endpoint",
            name="former_secrets",
            field=dispatch.core.crypto.EncryptedJSONField(
                blank=True,
                editable=False,
                help_text="Secrets from before the previous one, which also sign: [secret, until].",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="message",
            name="deferred_since",
            field=models.DateTimeField(help_text="When a receiver first deferred it.", null=True),
        ),
        migrations.AddField(
            model_name="target",
            name="deferring_since",
            field=models.DateTimeField(help_text="First deferral since the last delivery.", null=True),
        ),
        migrations.AddField(
            model_name="target",
            name="last_deferred_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="target",
            name="is_deferral_reported",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
