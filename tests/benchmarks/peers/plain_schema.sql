-- The tables of the plain peers (plain_site.py, plain_site.mjs).
CREATE TABLE bench_key (id bigserial PRIMARY KEY, digest text NOT NULL UNIQUE);
CREATE TABLE bench_technician (
    id bigserial PRIMARY KEY, organization_id bigint NOT NULL, name text NOT NULL, phone text NOT NULL,
    skill text NOT NULL, lat float8 NOT NULL, lng float8 NOT NULL
);
CREATE INDEX ON bench_technician (organization_id, lat);
CREATE TABLE bench_job (
    id bigserial PRIMARY KEY, organization_id bigint NOT NULL, idempotency_key text NOT NULL, form jsonb NOT NULL,
    status text NOT NULL DEFAULT 'new', technician_id bigint REFERENCES bench_technician,
    created_at timestamptz NOT NULL DEFAULT now(), UNIQUE (organization_id, idempotency_key)
);
CREATE TABLE bench_lead (
    id bigserial PRIMARY KEY, phone text NOT NULL, status text NOT NULL DEFAULT 'backlog',
    outcome text NOT NULL DEFAULT '', due_at timestamptz NOT NULL, finished_at timestamptz
);
CREATE TABLE bench_call (
    id bigserial PRIMARY KEY, job_id bigint REFERENCES bench_job, lead_id bigint REFERENCES bench_lead,
    technician_id bigint REFERENCES bench_technician, phone text NOT NULL, sid text NOT NULL DEFAULT '',
    status text NOT NULL DEFAULT 'requesting', created_at timestamptz NOT NULL DEFAULT now(), ended_at timestamptz
);
CREATE INDEX ON bench_call (job_id);
CREATE INDEX ON bench_call (lead_id);
CREATE TABLE bench_event (
    id bigserial PRIMARY KEY, kind text NOT NULL, subject_id bigint NOT NULL, data jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON bench_event (kind, subject_id);
