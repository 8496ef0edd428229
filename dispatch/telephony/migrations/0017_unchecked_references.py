import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Stop checking the references of calls: the rows that they name cannot be deleted.

    Not in one transaction, so that each table is locked only for its own change.
    """

    atomic = False
    dependencies = [
        ("accounts", "0013_handover_notes"),
        ("capacity", "0004_fallback_and_rest"),
        ("telephony", "0016_codes_for_phones"),
    ]

    operations = [
        migrations.AlterField(
            model_name="call",
            name="account",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="capacity.provideraccount",
            ),
        ),
        migrations.AlterField(
            model_name="call",
            name="number",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="calls",
                to="capacity.outboundnumber",
            ),
        ),
        migrations.AlterField(
            model_name="call",
            name="organization",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="accounts.organization",
            ),
        ),
        migrations.AlterField(
            model_name="call",
            name="pool",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="calls",
                to="capacity.dispatchpool",
            ),
        ),
    ]
