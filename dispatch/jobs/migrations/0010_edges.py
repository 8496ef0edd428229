from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0009_offer_slots"),
    ]

    operations = [
        migrations.AddField(
            model_name="customertextpolicy",
            name="sends_running_late",
            field=models.BooleanField(
                db_default=False, default=False, verbose_name="running late, with the delay"
            ),
        ),
        migrations.AlterField(
            model_name="customertext",
            name="kind",
            field=models.CharField(
                choices=[
                    ("received", "the request was received"),
                    ("assigned", "a technician is coming"),
                    ("on_the_way", "the technician is on the way"),
                    ("running_late", "the technician is running late"),
                    ("completed", "the work is done"),
                    ("cancelled", "the request was canceled"),
                ],
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="customertextpolicy",
            name="sends_cancelled",
            field=models.BooleanField(default=False, verbose_name="request canceled"),
        ),
        migrations.AlterField(
            model_name="job",
            name="pending_reason",
            field=models.CharField(
                blank=True,
                choices=[
                    ("", "—"),
                    ("exhausted", "Nobody accepted"),
                    ("nobody_near", "No qualified technician nearby"),
                    ("no_position", "Address not found"),
                    ("moved_often", "Address changed repeatedly"),
                    ("no_line", "No line became free"),
                    ("provider_down", "The phone provider is not responding"),
                    ("account_refused", "The phone provider refuses our account"),
                    ("processing_failed", "Processing failed"),
                ],
                default="",
                max_length=32,
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="status",
            field=models.CharField(
                choices=[
                    ("dispatching", "Dispatching"),
                    ("assigned", "Assigned"),
                    ("pending", "Pending"),
                    ("completed", "Completed"),
                    ("cancelled", "Canceled"),
                ],
                default="dispatching",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="techniciannotice",
            name="news",
            field=models.CharField(
                choices=[
                    ("assigned", "the job was assigned to them"),
                    ("reassigned", "the job was reassigned"),
                    ("cancelled", "the job was canceled"),
                    ("changed", "the job has changed"),
                    ("reopened", "the job was reopened"),
                ],
                max_length=16,
            ),
        ),
    ]
