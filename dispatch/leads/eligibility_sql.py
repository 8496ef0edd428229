"""Hold the statements that read the facts for a batch's eligibility check.

Each is written for about a hundred leads.
"""

# %(ids)s: ids of campaigns. One row per campaign, whose first column is whether the kill switch is on; without
# campaigns, a single row with only that column.
CAMPAIGNS = """
SELECT COALESCE(s.is_stopped, false), c.id, c.organization_id, c.pool_id, c.is_paused, c.customer, c.window_from,
       c.window_until, c.weekdays, c.keeps_holidays, c.patience_h, c.max_attempts, c.max_attempts_24h,
       c.ring_timeout_s,
       LEAST(14400, c.time_limit_s + COALESCE(a.limit_s, 0) + COALESCE((
           SELECT max(k.talk_limit_s) FROM leads_keybranch k
           WHERE k.campaign_id = c.id AND k.action = 'connect'), 0)),
       c.detect_machines, c.precheck_url, c.precheck_timeout_s,
       c.precheck_without_answer, c.precheck_secret, c.code,
       CASE WHEN o.is_active THEN COALESCE(d.mode, 'off') ELSE 'off' END,
       COALESCE(d.is_paused, false), o.allowed_countries,
       c.script || c.answer_url ~ '\\S' OR c.recording_id IS NOT NULL OR a.starts IS NOT DISTINCT FROM 'answer',
       c.detect_machines AND (c.voicemail ~ '\\S' OR c.voicemail_recording_id IS NOT NULL), c.consent_purpose
FROM (SELECT bool_or(is_stopped) AS is_stopped FROM leads_engineswitch) s
LEFT JOIN leads_campaign c ON c.id = ANY(%(ids)s::bigint[])
LEFT JOIN accounts_organization o ON o.id = c.organization_id
LEFT JOIN leads_leaddispatch d ON d.organization_id = c.organization_id
LEFT JOIN leads_voiceagent a ON a.campaign_id = c.id
"""

# %(organizations)s, %(phones)s: parallel arrays, one pair per lead. Returns the pairs (organization id, phone)
# that may not be called, and whether the phone opted out of texts. The organization is null for phones that nobody
# may call.
REFUSED = """
SELECT d.organization_id, d.phone, false FROM leads_donotcall d
JOIN (
    SELECT DISTINCT * FROM unnest(%(organizations)s::bigint[], %(phones)s::text[]) AS w (organization_id, phone)
) w
    USING (organization_id, phone)
UNION ALL
SELECT o.organization_id, o.phone, true FROM telephony_optout o
JOIN (
    SELECT DISTINCT * FROM unnest(%(organizations)s::bigint[], %(phones)s::text[]) AS w (organization_id, phone)
) w
    USING (organization_id, phone)
UNION ALL
SELECT NULL, phone, false FROM leads_donotcalleverywhere WHERE phone = ANY(%(phones)s::text[])
"""

# The same parameters, and %(since)s. Returns when each call was requested that the provider may have made. A call
# that is not requested yet is open, and the organization can have no other open call to that phone. Written so
# that only an index that begins with organization and phone is usable: before a table is analyzed, PostgreSQL may
# prefer one that reads all recent calls of the organization for each phone.
DIALED = """
SELECT w.organization_id, w.to_phone, made.requested_at FROM (
    SELECT DISTINCT * FROM unnest(%(organizations)s::bigint[], %(phones)s::text[]) AS w (organization_id, to_phone)
) w
CROSS JOIN LATERAL (
    SELECT c.requested_at FROM telephony_call c
    WHERE c.organization_id = w.organization_id AND c.to_phone = w.to_phone AND c.purpose = 'lead'
      AND c.requested_at + interval '0' > %(since)s AND c.status NOT IN ('rejected', 'not_placed')
    OFFSET 0
) AS made
"""

# %s: organization ids, customers. Until this transaction ends, no other transaction can decide by these rates.
LOCK_RATES = """
SELECT r.id, r.organization_id, r.customer, r.most, r.per_s FROM leads_customerrate r
JOIN unnest(%s::bigint[], %s::text[]) AS w (organization_id, customer) USING (organization_id, customer)
ORDER BY r.id FOR UPDATE OF r
"""

# %s: the current time, ids of rates. Returns the newest calls on behalf of each rate's customer, as many as the
# rate allows.
SPENT = """
SELECT r.organization_id, r.customer, made.created_at FROM leads_customerrate r
CROSS JOIN LATERAL (
    SELECT c.created_at FROM telephony_call c
    WHERE c.organization_id = r.organization_id AND c.customer = r.customer AND c.customer <> ''
      AND c.created_at > %s - make_interval(secs => r.per_s) AND c.status NOT IN ('rejected', 'not_placed')
    ORDER BY c.created_at DESC LIMIT r.most
) AS made
WHERE r.id = ANY(%s)
"""

# %s: ids of rates, then parallel arrays of organizations, customers and campaigns of the batch's leads, then the
# current time. Returns the last times at which the customers' leads are due that wait for the rate, over these
# campaigns and the customer's own: as many as the rate allows. Of a campaign, it reads the last 1,000 leads that
# wait for any customer's rate. Without the others, a lead may be due too early; its rate is then checked again.
QUEUED = """
WITH campaign AS (
    SELECT r.organization_id, r.customer, k.id FROM leads_customerrate r
    JOIN leads_campaign k ON k.organization_id = r.organization_id AND k.customer = r.customer
    WHERE r.id = ANY(%s)
    UNION
    SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[])
)
SELECT c.organization_id, c.customer, waiting.due_at FROM campaign c
JOIN leads_customerrate r USING (organization_id, customer)
JOIN leads_campaign k ON k.id = c.id
CROSS JOIN LATERAL (
    SELECT last.due_at FROM (
        SELECT l.due_at, l.customer FROM leads_lead l
        WHERE l.campaign_id = k.id AND l.status = 'backlog' AND l.reason = 'customer_rate'
          AND l.due_at > %s - make_interval(secs => r.per_s)
        ORDER BY l.due_at DESC LIMIT greatest(r.most, 1000)
    ) AS last
    WHERE COALESCE(NULLIF(last.customer, ''), k.customer) = r.customer
    ORDER BY last.due_at DESC LIMIT r.most
) AS waiting
"""

# The same as QUEUED for campaigns with many such customers, without the campaigns' own: parallel arrays of
# organizations, customers and campaigns, then twice the current time. The last 1,000 leads of a campaign are read
# once, not once per customer.
QUEUED_OF_MANY = """
WITH wanted AS (
    SELECT w.*, r.most, r.per_s FROM unnest(%s::bigint[], %s::text[], %s::bigint[])
        AS w (organization_id, customer, campaign_id)
    JOIN leads_customerrate r USING (organization_id, customer)
    JOIN leads_campaign k ON k.id = w.campaign_id AND k.customer <> w.customer
), waiting AS MATERIALIZED (
    SELECT c.campaign_id, last.customer, array_agg(last.due_at ORDER BY last.due_at DESC) AS dues
    FROM (SELECT campaign_id, max(most) AS most, max(per_s) AS per_s FROM wanted GROUP BY 1) c
    CROSS JOIN LATERAL (
        SELECT l.due_at, l.customer FROM leads_lead l
        WHERE l.campaign_id = c.campaign_id AND l.status = 'backlog' AND l.reason = 'customer_rate'
          AND l.due_at > %s - make_interval(secs => c.per_s)
        ORDER BY l.due_at DESC LIMIT greatest(c.most, 1000)
    ) AS last
    GROUP BY 1, 2
)
SELECT w.organization_id, w.customer, due.at FROM wanted w
JOIN waiting q USING (campaign_id, customer)
CROSS JOIN LATERAL unnest(q.dues[:w.most]) AS due (at)
WHERE due.at > %s - make_interval(secs => w.per_s)
"""

# Returns the organizations that have a lead with %(phone)s.
ORGANIZATIONS_OF_PHONE = """
SELECT o.id FROM accounts_organization o
WHERE EXISTS (SELECT FROM leads_lead l WHERE l.organization_id = o.id AND l.phone = %(phone)s)
"""

# %(organization)s, %(now)s, and parallel arrays. Returns the ids of the new rows.
INSERT_CONSENTS = """
INSERT INTO leads_consent
    (organization_id, phone, phone_hash, purpose, given_at, source, words, proof, withdrawn_by, created_at)
SELECT %(organization)s, v.phone, '', v.purpose, v.given_at, v.source, v.words, v.proof, '', %(now)s
FROM unnest(%(phones)s::text[], %(purposes)s::text[], %(dates)s::timestamptz[], %(sources)s::text[],
            %(words)s::text[], %(proofs)s::text[]) AS v (phone, purpose, given_at, source, words, proof)
WHERE NOT EXISTS (
    SELECT FROM leads_consent w
    WHERE w.organization_id = %(organization)s AND w.phone = v.phone AND w.withdrawn_at >= v.given_at
) AND NOT EXISTS (
    SELECT FROM leads_donotcall d WHERE d.organization_id = %(organization)s AND d.phone = v.phone
)
ON CONFLICT DO NOTHING
RETURNING id
"""

# %(ids)s: ids of consents that this transaction has just inserted. Deletes those that another transaction withdrew
# while the insert waited for it, and returns their ids.
DELETE_WITHDRAWN = """
DELETE FROM leads_consent c WHERE c.id = ANY(%(ids)s::bigint[]) AND (
    EXISTS (
        SELECT FROM leads_consent w
        WHERE w.organization_id = c.organization_id AND w.phone = c.phone AND w.withdrawn_at >= c.given_at
    ) OR EXISTS (
        SELECT FROM leads_donotcall d WHERE d.organization_id = c.organization_id AND d.phone = c.phone
    )
) RETURNING c.id
"""

# %(organizations)s, %(phones)s, %(purposes)s: parallel arrays. Returns those for which a valid consent exists.
# Written so that only an index that begins with organization and phone is usable (see DIALED).
CONSENTED = """
SELECT w.organization_id, w.phone, w.purpose FROM (
    SELECT DISTINCT * FROM unnest(%(organizations)s::bigint[], %(phones)s::text[], %(purposes)s::text[])
        AS w (organization_id, phone, purpose)
) w
CROSS JOIN LATERAL (
    SELECT FROM leads_consent c
    WHERE c.organization_id = w.organization_id AND c.phone = w.phone AND c.purpose || '' = w.purpose
      AND c.withdrawn_at IS NULL
    LIMIT 1
) AS valid
"""
