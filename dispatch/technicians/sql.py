"""SQL of the hot path: technicians near a location, with the reason for being eligible or not.

Relies on the index `technician_near` of `models.Technician`: (organization, cell) where active.
"""

from dispatch.technicians.h3_cells import EARTH_RADIUS_M
from dispatch.technicians.rules import USUAL_SPEED

_DISTANCE = f"""
    2 * {EARTH_RADIUS_M} * asin(sqrt(least(1,
        power(sin(radians(t.lat - %(lat)s) / 2), 2)
        + cos(radians(%(lat)s)) * cos(radians(t.lat)) * power(sin(radians(t.lng - %(lng)s) / 2), 2)
    )))"""

_OFF_SHIFT = """NOT t.hours @> CASE WHEN t.time_zone = '' THEN %(week_second)s ELSE (
            SELECT ((extract(isodow FROM l) - 1) * 86400 + floor(extract(epoch FROM l::time)))::int
            FROM (SELECT %(now)s::timestamptz AT TIME ZONE t.time_zone AS l) local
        ) END"""

# The open jobs that count toward the limit: those at the time of the job, with the drive (seconds) before and
# after it. A job without an arrival window always counts; one that should have ended takes until now at least.
_AT_ONCE = """CASE WHEN t.planned_times IS NULL THEN t.open_jobs ELSE t.open_jobs - (
            SELECT count(*)::int FROM unnest(t.planned_times) AS other
            WHERE lower(other) > %(job_end)s::timestamptz + make_interval(secs => {drive_s})
               OR greatest(upper(other), %(now)s::timestamptz)
                  < %(job_begin)s::timestamptz - make_interval(secs => {drive_s})
        ) END"""
_AT_ONCE_HERE = _AT_ONCE.format(drive_s=f"t.distance_m / {USUAL_SPEED}")

# The only definition of eligibility. The reason that is hardest to change comes first, so that the most
# informative reason is shown. A technician with the code `on_another_offer` has no other obstacle. Hours are
# seconds of the local week (`rules.week_spans`). Most technicians use the organization's time zone, for which the
# second is computed once.
_CODE = f"""
    CASE
        WHEN NOT t.is_active THEN 'inactive'
        WHEN t.distance_m > %(radius_m)s THEN 'out_of_radius'
        WHEN NOT t.skill_ids @> %(skill_ids)s::bigint[] THEN 'lacks_skill'
        WHEN t.distance_m > t.radius_m THEN 'own_radius'
        WHEN NOT t.on_duty THEN 'off_duty'
        WHEN t.auto_paused_at IS NOT NULL THEN 'auto_paused'
        WHEN {_OFF_SHIFT} THEN 'off_shift'
        WHEN CASE WHEN t.open_jobs >= t.max_open_jobs THEN {_AT_ONCE_HERE} >= t.max_open_jobs END THEN 'at_limit'
        WHEN t.live_offer_id IS NOT NULL THEN 'on_another_offer'
        ELSE 'fit'
    END"""

_JUDGED_BY = """t.id, t.is_active, t.skill_ids, t.radius_m, t.on_duty, t.hours, t.time_zone, t.open_jobs,
        t.max_open_jobs, t.planned_times, t.live_offer_id, t.auto_paused_at"""
# Hours are selected only for technicians who are off shift: they are the slowest column to decode.
_FIELDS = f"""
    t.id, t.organization_id, t.name, t.phone, t.lat, t.lng, t.skill_ids,
    CASE WHEN j.code = 'off_shift' THEN t.hours END AS hours,
    t.radius_m, {_AT_ONCE.format(drive_s=f"j.distance_m / {USUAL_SPEED}")}, t.max_open_jobs, t.live_offer_id,
    t.last_offered_at, t.time_zone, t.misses_in_a_row"""

# Every active technician within the radius gets a code. The nearest technicians who are in or deferred come first,
# then the nearest who are out; ties go to the lower id. `totals` counts all of them by reason. The spans come from
# h3_cells.spans_around(): a few ranges of the index. OFFSET 0 separates the steps, so that each distance is
# computed once.
NEAR = f"""
WITH judged AS MATERIALIZED (
    SELECT t.id, t.distance_m, {_CODE} AS code
    FROM (
        SELECT {_JUDGED_BY}, {_DISTANCE} AS distance_m
        FROM unnest(%(lows)s::bigint[], %(highs)s::bigint[]) AS span(low, high)
        JOIN LATERAL (
            SELECT * FROM technicians_technician
            WHERE organization_id = %(organization_id)s AND is_active AND cell BETWEEN span.low AND span.high
            OFFSET 0
        ) t ON true
        OFFSET 0
    ) t
    WHERE t.distance_m <= %(radius_m)s
), considered AS MATERIALIZED (
    SELECT id, distance_m, code FROM judged
    ORDER BY code NOT IN ('fit', 'on_another_offer'), distance_m, id
    LIMIT %(limit)s
), totals AS (
    SELECT json_object_agg(code, n) AS by_code FROM (SELECT code, count(*) AS n FROM judged GROUP BY code) counted
)
SELECT {_FIELDS}, j.distance_m, j.code, (SELECT by_code::text FROM totals)
FROM considered j
JOIN technicians_technician t ON t.id = j.id
ORDER BY j.code NOT IN ('fit', 'on_another_offer'), j.distance_m, j.id
"""

_ONE = """
WITH found AS MATERIALIZED (SELECT * FROM technicians_technician WHERE id {which})
SELECT {fields}, j.distance_m, j.code
FROM (SELECT t.*, {distance} AS distance_m FROM found t OFFSET 0) t
CROSS JOIN LATERAL (SELECT {code} AS code, t.distance_m OFFSET 0) j
"""
# One technician by the same rules. ONE_LOCKED locks the row first, so that the code reflects the changes of the
# lock's last holder. The lock still allows other sessions to write foreign keys to the row.
_JUDGED = {"fields": _FIELDS, "distance": _DISTANCE, "code": _CODE}
ONE = _ONE.format(which="= %(technician_id)s", **_JUDGED)
ONE_LOCKED = _ONE.format(which="= %(technician_id)s FOR NO KEY UPDATE", **_JUDGED)
# Returns no row if another session has it locked.
ONE_UNLOCKED = _ONE.format(which="= %(technician_id)s FOR NO KEY UPDATE SKIP LOCKED", **_JUDGED)
# Those of these technicians who have another offer and no other obstacle. Locks nothing.
BUSY = _ONE.format(which="= ANY(%(ids)s::bigint[]) AND live_offer_id IS NOT NULL", **_JUDGED) + (
    "WHERE j.code = 'on_another_offer'"
)

# Technicians whose rows no session has locked against foreign keys.
FREE = "SELECT id FROM technicians_technician WHERE id = ANY(%(ids)s::bigint[]) FOR KEY SHARE SKIP LOCKED"
LOCK_FREE = """
SELECT id FROM technicians_technician WHERE id = ANY(%(ids)s::bigint[])
ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""

# Set the live offer; refused if the technician has another one.
OFFER_BEGUN = """
WITH begun AS (
    UPDATE technicians_technician SET live_offer_id = %(offer_id)s,
        last_offered_at = CASE WHEN live_offer_id IS NULL THEN %(now)s ELSE last_offered_at END
    WHERE id = %(technician_id)s AND (live_offer_id IS NULL OR live_offer_id = %(offer_id)s)
    RETURNING id
)
SELECT 1 / count(*) FROM begun
"""

# The state of each active technician, independent of a job: the number per state and the first names of each.
ON_STRIP = f"""
WITH judged AS (
    SELECT t.id, t.name, t.at_once AS open_jobs, t.max_open_jobs, t.misses_in_a_row,
        CASE
            WHEN t.live_offer_id IS NOT NULL THEN 'on_offer'
            WHEN NOT t.on_duty THEN 'off'
            WHEN t.auto_paused_at IS NOT NULL THEN 'auto_paused'
            WHEN t.at_once > 0 THEN 'on_job'
            WHEN {_OFF_SHIFT} THEN 'off_shift'
            ELSE 'available'
        END AS state
    FROM (
        SELECT t.*, {_AT_ONCE.format(drive_s="0")} AS at_once FROM technicians_technician t
        WHERE t.organization_id = %(organization_id)s AND t.is_active OFFSET 0
    ) t
), placed AS (
    SELECT *, row_number() OVER (PARTITION BY state ORDER BY name, id) AS place,
        count(*) OVER (PARTITION BY state) AS n
    FROM judged
)
SELECT id, name, open_jobs, max_open_jobs, misses_in_a_row, state, n FROM placed WHERE place <= %(most)s
ORDER BY name, id
"""

# Changes of one technician, in the transaction of an answered call.
END_OFFER = "UPDATE technicians_technician SET live_offer_id = NULL WHERE id = %s AND live_offer_id = %s"
END_ANSWERED_OFFER = """
UPDATE technicians_technician SET live_offer_id = NULLIF(live_offer_id, %s), misses_in_a_row = 0
WHERE id = %s AND (live_offer_id = %s OR misses_in_a_row > 0)
"""
RESET_MISSES = "UPDATE technicians_technician SET misses_in_a_row = 0 WHERE id = %s AND misses_in_a_row > 0"
ADD_OPEN_JOB = "UPDATE technicians_technician SET open_jobs = open_jobs + 1 WHERE id = %s"
