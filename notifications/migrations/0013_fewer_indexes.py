import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    """Drop indexes that are prefixes of others.

    Django would also drop other indexes on these columns, so the statements are given here. Not in one
    transaction, so that no table is locked.
    """

    atomic = False
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("notifications", "0012_push_withdrawals"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="notification",
                    name="user",
                    field=models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notifications",
                        to=settings.AUTH_USER_MODEL,
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS notifications_notification_user_id_b5e8c0ff",
                    "CREATE INDEX CONCURRENTLY notifications_notification_user_id_b5e8c0ff ON notifications_notification (user_id)",
                ),
            ],
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="delivery",
                    name="notification",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="notifications.notification",
                    ),
                )
            ],
            database_operations=[
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS notifications_delivery_notification_id_ea8dc048",
                    "CREATE INDEX CONCURRENTLY notifications_delivery_notification_id_ea8dc048 ON notifications_delivery (notification_id)",
                ),
            ],
        ),
    ]
