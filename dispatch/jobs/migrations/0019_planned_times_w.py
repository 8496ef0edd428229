from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

# The times of a technician's open jobs with an arrival window, or NULL: from the earliest arrival until the work of
# the latest one ends. On the way and the beginning of the work replace what was planned.
FUNCTION = """
CREATE OR REPLACE FUNCTION jobs_planned_times(wanted bigint) RETURNS tstzrange[] LANGUAGE sql STABLE AS $$
    SELECT array_agg(span ORDER BY span, id) FROM (
        SELECT j.id, tstzrange(
            least(j.window_start, j.on_the_way_at, j.started_at),
            greatest(coalesce(j.started_at, j.window_end, j.window_start), j.window_start)
                + make_interval(mins => coalesce(nullif(j.expected_minutes, 0), nullif(s.expected_minutes, 0), 60)),
            '[]'
        ) AS span
        FROM jobs_job j JOIN jobs_servicetype s ON s.id = j.service_type_id
        WHERE j.technician_id = wanted AND j.status = 'assigned' AND j.window_start IS NOT NULL
    ) planned
$$
"""

# The technicians are locked before the jobs are read, so that of two changes at once the later one sees both.
TRIGGER_FUNCTION = """
CREATE OR REPLACE FUNCTION jobs_refresh_planned_times() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    affected bigint[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        affected := ARRAY[NEW.technician_id];
    ELSIF TG_OP = 'DELETE' THEN
        affected := ARRAY[OLD.technician_id];
    ELSE
        affected := ARRAY[OLD.technician_id, NEW.technician_id];
    END IF;
    PERFORM FROM technicians_technician WHERE id = ANY(affected) ORDER BY id FOR NO KEY UPDATE;
    UPDATE technicians_technician SET planned_times = jobs_planned_times(id)
    WHERE id = ANY(affected) AND planned_times IS DISTINCT FROM jobs_planned_times(id);
    RETURN NULL;
END
$$
"""

_NEW = "(NEW.status = 'assigned' AND NEW.window_start IS NOT NULL)"
_OLD = "(OLD.status = 'assigned' AND OLD.window_start IS NOT NULL)"
_COLUMNS = (
    "status", "technician_id", "window_start", "window_end", "expected_minutes", "on_the_way_at", "started_at",
)  # fmt: skip
_CHANGED = " IS DISTINCT FROM ".join(
    f"({', '.join(f'{row}.{column}' for column in _COLUMNS)})" for row in ("OLD", "NEW")
)
TRIGGERS = [
    f"""
    CREATE OR REPLACE TRIGGER job_planned_times_{operation.lower()} AFTER {operation} ON jobs_job
    FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION jobs_refresh_planned_times()
    """
    for operation, condition in (
        ("INSERT", _NEW),
        ("UPDATE", f"({_OLD} OR {_NEW}) AND {_CHANGED}"),
        ("DELETE", _OLD),
    )
]


class Migration(migrations.Migration):
    """Maintain when the open jobs of technicians take place.

    Technicians whose jobs are planned already get their times from the loop that repairs technicians. What an
    interrupted build of the index left is dropped first.
    """

    atomic = False
    dependencies = [("jobs", "0018_candidate_travel"), ("technicians", "0004_planned_times_w")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_planned_for", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status", "assigned"), ("window_start__isnull", False)),
                fields=["technician"],
                name="job_planned_for",
            ),
        ),
        migrations.RunSQL([FUNCTION, TRIGGER_FUNCTION, *TRIGGERS], migrations.RunSQL.noop),
    ]
