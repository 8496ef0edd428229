"""Define the defaults and limits of the slices, and the intervals of the loops.

Users change policies in the admin; the values under "Policy defaults" apply where they have not.
"""

from email.utils import parseaddr

from dispatch.settings.environment import DATA_DIR, DEFAULT_FROM_EMAIL, DEVELOPMENT, env

# --- Leads --------------------------------------------------------------------------------------------------
# Retries after a call that reached nobody, for campaigns without their own rule.
LEADS_RETRY_ATTEMPTS = env.int("LEADS_RETRY_ATTEMPTS", default=3)
LEADS_RETRY_DELAY_S = env.int("LEADS_RETRY_DELAY_S", default=3600)
LEADS_RETRY_FACTOR = env.float("LEADS_RETRY_FACTOR", default=2.0)
LEADS_RETRY_LONGEST_S = env.int("LEADS_RETRY_LONGEST_S", default=86_400)
LEADS_RETRY_JITTER = env.float("LEADS_RETRY_JITTER", default=0.1)
# The Redis queue, dialers and reconcilers.
LEADS_TICK_S = env.float("LEADS_TICK_S", default=0.2)  # maximum sleep of the promoter
# A lead is checked this long before its due time, so that its call is requested on time.
LEADS_AHEAD_S = env.float("LEADS_AHEAD_S", default=0.02)
LEADS_PROMOTE_BATCH = env.int("LEADS_PROMOTE_BATCH", default=2000)
LEADS_BATCH = env.int("LEADS_BATCH", default=200)  # leads per transaction
LEADS_CLAIMERS = env.int("LEADS_CLAIMERS", default=2)  # concurrent transactions per dialer
LEADS_IN_FLIGHT = env.int("LEADS_IN_FLIGHT", default=1000)  # claimed and unresolved leads per dialer
LEADS_ASK_THREADS = env.int("LEADS_ASK_THREADS", default=32)  # concurrent requests of a blocking provider client
LEADS_HEARTBEAT_S = env.float("LEADS_HEARTBEAT_S", default=5.0)
LEADS_WORKER_DEAD_S = env.float("LEADS_WORKER_DEAD_S", default=20.0)  # without a heartbeat
# A dialer may hold a claim this long without reporting an outcome; longer during a pre-check.
LEADS_CLAIM_LEASE_S = env.float("LEADS_CLAIM_LEASE_S", default=15.0)
LEADS_QUESTION_LEASE_S = env.float("LEADS_QUESTION_LEASE_S", default=45.0)
LEADS_WORKERS_INTERVAL_S = env.float("LEADS_WORKERS_INTERVAL_S", default=5.0)
LEADS_NEAR_S = env.float("LEADS_NEAR_S", default=600.0)  # leads due within this are near
LEADS_NEAR_INTERVAL_S = env.float("LEADS_NEAR_INTERVAL_S", default=60.0)
LEADS_SWEEP_INTERVAL_S = env.float("LEADS_SWEEP_INTERVAL_S", default=1.0)  # one small page per pass
LEADS_STALE_S = env.float("LEADS_STALE_S", default=300.0)  # a claim without a call
LEADS_UNTOLD_S = env.float("LEADS_UNTOLD_S", default=15.0)  # after the end of its call
LEADS_STALE_INTERVAL_S = env.float("LEADS_STALE_INTERVAL_S", default=30.0)
LEADS_LIFTED_INTERVAL_S = env.float("LEADS_LIFTED_INTERVAL_S", default=15.0)
# After an outage, overdue leads are spread over LEADS_JITTER_S, plus LEADS_JITTER_S per LEADS_JITTER_PER leads.
LEADS_JITTER_S = env.float("LEADS_JITTER_S", default=5.0)
LEADS_JITTER_PER = env.int("LEADS_JITTER_PER", default=5000)
LEADS_JITTER_MOST_S = env.float("LEADS_JITTER_MOST_S", default=300.0)
LEADS_REBUILD_MOST = env.int("LEADS_REBUILD_MOST", default=200_000)  # the sweep adds the rest

# --- Telephony ----------------------------------------------------------------------------------------------
# The URL of the simulator's REST API, which the accounts of the development organization use.
SIMULATOR_URL = env.str("SIMULATOR_URL", default="http://127.0.0.1:8010").rstrip("/") if DEVELOPMENT else ""
# Further providers, name to module, as JSON: for example, a benchmark's simulated one.
PROVIDER_MODULES = env.json("PROVIDER_MODULES", default={}) if DEVELOPMENT else {}
PROVIDER_TIMEOUT_S = env.float("PROVIDER_TIMEOUT_S", default=10.0)
# Concurrent requests for calls: of a process in all, and of one account at the provider.
PROVIDER_REQUESTS = env.int("PROVIDER_REQUESTS", default=512)
PROVIDER_ACCOUNT_REQUESTS = env.int("PROVIDER_ACCOUNT_REQUESTS", default=64)
# A leader that has not reached the provider for this long gives way to a process that reaches it.
PROVIDER_LOST_AFTER_S = env.float("PROVIDER_LOST_AFTER_S", default=10.0)
# A request may be sent at most this long after its claim; after that its outcome can only be "unknown".
CALL_SEND_WINDOW_S = env.float("CALL_SEND_WINDOW_S", default=5.0)
CALL_TIME_LIMIT_S = env.int("CALL_TIME_LIMIT_S", default=300)
# What a call and a text count toward a spending cap until the organization's own prices are known.
SPEND_CALL_ESTIMATE = env.decimal("SPEND_CALL_ESTIMATE", default="0.02")
SPEND_TEXT_ESTIMATE = env.decimal("SPEND_TEXT_ESTIMATE", default="0.01")
# Maximum automatic replies by text to one phone, so that two automatic responders do not reply to each other
# endlessly.
TEXT_REPLIES_PER_HOUR = env.int("TEXT_REPLIES_PER_HOUR", default=20)
UNKNOWN_LISTING_GAP_S = env.float("UNKNOWN_LISTING_GAP_S", default=60.0)
# The provider allows 15 s for all attempts: without `rt`, the first hanging attempt would use it up.
WEBHOOK_RETRIES = "#rc=3&rp=ct,rt,5xx&ct=2000&rt=4000"

# --- Outbox: the queue of pointers, and allowed targets ---------------------------------------------------------
OUTBOX_QUEUE_TYPE = env.str("OUTBOX_QUEUE_TYPE", default="redis")  # embedded, redis, sqs, activemq
OUTBOX_QUEUE_URL = env.str("OUTBOX_QUEUE_URL", default="")  # redis: empty is REDIS_URL
OUTBOX_EMBEDDED_FILE = env.str("OUTBOX_EMBEDDED_FILE", default=str(DATA_DIR / "outbox-queue.sqlite3"))
# A pointer that a consumer has not acknowledged is redelivered after this time, which must exceed an attempt's.
OUTBOX_VISIBILITY_S = env.float("OUTBOX_VISIBILITY_S", default=60.0)
# How long the Redis and embedded queues store a deduplication id (SQS: always five minutes).
OUTBOX_DEDUP_S = env.float("OUTBOX_DEDUP_S", default=300.0)
# Keys of the pointers' tokens: the first one signs, and all are accepted. Empty: derived from SECRET_KEY.
OUTBOX_TOKEN_KEYS = env.list("OUTBOX_TOKEN_KEYS", default=[])
# Non-public addresses may be called only inside these networks.
HTTP_ALLOWED_NETWORKS = env.list(
    "HTTP_ALLOWED_NETWORKS", default=["127.0.0.0/8", "::1/128"] if DEVELOPMENT else []
)
# A proxy through which every URL that an organization chooses, and the heartbeat, is called; empty: none.
OUTBOUND_PROXY_URL = env.str("OUTBOUND_PROXY_URL", default="")
# Allowed in addition to 80, 443 and ports from 1024 on, except ports of well-known services other than HTTP.
HTTP_ALLOWED_PORTS = env.list("HTTP_ALLOWED_PORTS", cast=int, default=[])

# --- Outbox: order, poller, router ------------------------------------------------------------------------------
OUTBOX_ENABLED = env.bool("OUTBOX_ENABLED", default=True)
OUTBOX_POLL_INTERVAL_S = env.float("OUTBOX_POLL_INTERVAL_S", default=5.0)
OUTBOX_BATCH_SIZE = env.int("OUTBOX_BATCH_SIZE", default=200)
OUTBOX_GROUPS_AT_ONCE = env.int("OUTBOX_GROUPS_AT_ONCE", default=10)  # concurrent publishes
# Routers process the message that follows one that ended, without the queue.
OUTBOX_HAND_OVER = env.bool("OUTBOX_HAND_OVER", default=True)
OUTBOX_PROCESS_URL = env.str("OUTBOX_PROCESS_URL", default="")  # empty: under PUBLIC_BASE_URL
OUTBOX_DEFAULT_POOL = env.str("OUTBOX_DEFAULT_POOL", default="DISPATCH-POOL")
OUTBOX_REPUBLISH_AFTER_S = env.float("OUTBOX_REPUBLISH_AFTER_S", default=12.0)
OUTBOX_STALE_AFTER_S = env.float("OUTBOX_STALE_AFTER_S", default=900.0)
OUTBOX_STALE_INTERVAL_S = env.float("OUTBOX_STALE_INTERVAL_S", default=60.0)
OUTBOX_STALE_BATCH = env.int("OUTBOX_STALE_BATCH", default=100)
# An attempt in progress leases its message this long, renewed every third of it; after a crash it must expire.
OUTBOX_LEASE_S = env.float("OUTBOX_LEASE_S", default=60.0)
OUTBOX_LEASE_INTERVAL_S = env.float("OUTBOX_LEASE_INTERVAL_S", default=5.0)
OUTBOX_MAX_TIMEOUT_S = env.float("OUTBOX_MAX_TIMEOUT_S", default=30.0)
OUTBOX_ROUTER_CALLS = env.int("OUTBOX_ROUTER_CALLS", default=500)  # concurrent, per router process
OUTBOX_RETRY_SCHEDULE_S = env.list(
    "OUTBOX_RETRY_SCHEDULE_S", cast=int, default=[5, 30, 120, 600, 3600, 14400, 43200]
)
OUTBOX_PERMANENT_CODES = env.list(
    "OUTBOX_PERMANENT_CODES",
    cast=int,
    default=[400, 405, 406, 411, 413, 414, 415, 422, 431, 501],
)
OUTBOX_DEFER_S = env.float("OUTBOX_DEFER_S", default=30.0)  # a 429 without Retry-After
OUTBOX_LONGEST_DEFERRAL_S = env.float("OUTBOX_LONGEST_DEFERRAL_S", default=86_400.0)
# A message that receivers have deferred for this long fails at the next deferral.
OUTBOX_DEFERRAL_LIMIT_S = env.float("OUTBOX_DEFERRAL_LIMIT_S", default=86_400.0)
# An endpoint that has only deferred for this long raises a notification.
OUTBOX_DEFERRAL_ALERT_S = env.float("OUTBOX_DEFERRAL_ALERT_S", default=3600.0)
OUTBOX_CIRCUIT_FAILURES = env.int("OUTBOX_CIRCUIT_FAILURES", default=5)
OUTBOX_CIRCUIT_OPEN_S = env.float("OUTBOX_CIRCUIT_OPEN_S", default=30.0)
OUTBOX_CIRCUIT_LONGEST_S = env.float("OUTBOX_CIRCUIT_LONGEST_S", default=600.0)
OUTBOX_DISABLE_AFTER_S = env.float("OUTBOX_DISABLE_AFTER_S", default=3 * 86_400.0)
# Each event of an organization is compared with each of its endpoints.
OUTBOX_MAX_ENDPOINTS = env.int("OUTBOX_MAX_ENDPOINTS", default=1000)
OUTBOX_DISABLED_KEEP_S = env.float("OUTBOX_DISABLED_KEEP_S", default=30 * 86_400.0)  # then no more messages
OUTBOX_LAPSES = env.int("OUTBOX_LAPSES", default=10)  # crashes with one message before it becomes an ERROR

# --- Schedules ---------------------------------------------------------------------------------------------------
# The longest sleep of an executor. It wakes at the next trigger time, or when a run with an earlier one is
# created.
SCHEDULE_POLL_INTERVAL_S = env.float("SCHEDULE_POLL_INTERVAL_S", default=5.0)
SCHEDULE_BATCH_SIZE = env.int("SCHEDULE_BATCH_SIZE", default=1000)  # runs per transaction
SCHEDULE_CHUNK_SIZE = env.int("SCHEDULE_CHUNK_SIZE", default=100)  # runs per RQ job
# A worker leases its runs this long and renews the lease; after a crash it must expire.
SCHEDULE_LEASE_S = env.float("SCHEDULE_LEASE_S", default=90.0)
# A run that no worker has started is enqueued again after this time, if the queue no longer has its message.
SCHEDULE_STALE_AFTER_S = env.float("SCHEDULE_STALE_AFTER_S", default=30.0)
SCHEDULE_RECONCILE_INTERVAL_S = env.float("SCHEDULE_RECONCILE_INTERVAL_S", default=5.0)
SCHEDULE_MISSED_AFTER_S = env.int("SCHEDULE_MISSED_AFTER_S", default=300)  # a later run is missed
SCHEDULE_RETRY_SCHEDULE_S = env.list("SCHEDULE_RETRY_SCHEDULE_S", cast=int, default=[60, 300, 1800])
SCHEDULE_SHORTEST_INTERVAL_S = env.int("SCHEDULE_SHORTEST_INTERVAL_S", default=10)

# --- Policy defaults (a row in the admin takes precedence) ------------------------------------------------------
DISPATCH_POLICY_DEFAULTS = {
    "answer_timeout_s": env.int("OFFER_TIMEOUT_S", default=300),
    "ring_timeout_s": env.int("OFFER_RING_S", default=30),
    "answered_extension_s": env.int("OFFER_ANSWERED_EXTENSION_S", default=60),
    "radius_m": env.int("OFFER_RADIUS_M", default=50_000),
    "radius_growth": env.int("OFFER_RADIUS_GROWTH", default=0),
    "max_radius_m": env.int("OFFER_MAX_RADIUS_M", default=150_000),
    "max_candidates": env.int("OFFER_MAX_CANDIDATES", default=10),
    "rounds": env.int("OFFER_ROUNDS", default=1),
    "offers_at_once_for_emergencies": env.int("OFFERS_AT_ONCE_FOR_EMERGENCIES", default=1),
    "missed_call_grace_s": env.int("OFFER_MISSED_CALL_GRACE_S", default=0),
    "offer_by_text": env.bool("OFFER_BY_TEXT", default=False),
    "address_by_text": env.bool("OFFER_ADDRESS_BY_TEXT", default=True),
    "line_wait_s": env.int("OFFER_LINE_WAIT_S", default=300),
    "auto_pause_misses": env.int("OFFER_AUTO_PAUSE_MISSES", default=3),
    "pause_reminder_s": env.int("JOB_PAUSE_REMINDER_S", default=3600),
    "start_within_s": env.int("JOB_START_WITHIN_S", default=0),
    "window_lead_s": env.int("JOB_WINDOW_LEAD_S", default=7200),
    "finish_within_s": env.int("JOB_FINISH_WITHIN_S", default=0),
    "technician_wait_s": env.int("OFFER_TECHNICIAN_WAIT_S", default=600),
    "weight_distance": 1.0,
    "weight_workload": 0.5,
    "weight_rest": 0.25,
    "weight_skills": 0.5,
    "advance_on_decline": True,
    "advance_on_busy": True,
    "advance_on_failed": True,
    "advance_on_no_answer": True,
    "advance_on_hangup": True,
}
# A new job is flagged as a probable duplicate of an open one with the same phone or address; 0: never.
DUPLICATE_HOURS = env.int("DUPLICATE_HOURS", default=24)
# Unacknowledged alerts: the interval at which they are shown again, and the escalation steps, each with its delay
# after the previous step. With a spacing, people are notified one after another.
ALERT_REPEAT_S = env.int("ALERT_REPEAT_S", default=60)
ALERT_AGAIN_AFTER_S = env.int("ALERT_AGAIN_AFTER_S", default=900)
ALERT_RETURN_AFTER_S = env.int("ALERT_RETURN_AFTER_S", default=900)  # an acknowledged alert that nothing follows
_on_duty_then_all_then_admins = [
    {"audience": "on_duty", "after_s": 120, "spacing_s": 45},
    {"audience": "dispatchers", "after_s": 60},
    {"audience": "admins", "after_s": 120},
]
ALERT_STEPS = env.json("ALERT_STEPS", default=_on_duty_then_all_then_admins)
# Chat services and webhooks: the kinds that people may add, the total time of one message, and how long the link
# in an alert's message acknowledges it.
ALERT_CHANNEL_KINDS = env.list(
    "ALERT_CHANNEL_KINDS", default=["slack", "teams", "google_chat", "telegram", "matrix", "ntfy", "webhook"]
)
# The private key by which push services recognize this installation; empty: generated once and stored.
VAPID_PRIVATE_KEY = env.str("VAPID_PRIVATE_KEY", default="")
# Whom the operator of a push service asks about this installation's requests: a mailto: or https: address.
VAPID_CONTACT = env.str("VAPID_CONTACT", default="") or f"mailto:{parseaddr(DEFAULT_FROM_EMAIL)[1]}"
PUSH_TIMEOUT_S = env.float("PUSH_TIMEOUT_S", default=10.0)
ALERT_CHANNEL_TIMEOUT_S = env.float("ALERT_CHANNEL_TIMEOUT_S", default=10.0)
ALERT_LINK_HOURS = env.int("ALERT_LINK_HOURS", default=24)
IDEMPOTENCY_KEEP_DAYS = 7
# Signed links: lifetime in days (of a customer's link: after the request ended), and how many invalid links an
# address may try.
TECHNICIAN_LINK_DAYS = env.int("TECHNICIAN_LINK_DAYS", default=30)
CUSTOMER_LINK_DAYS = env.int("CUSTOMER_LINK_DAYS", default=30)
LINK_GUESS_RATE = env.str("LINK_GUESS_RATE", default="30/min")
# Submissions of public forms per address, customers' changes per request, changes of the address after which a
# dispatcher decides, and an organization's texts to a customer's phone.
PUBLIC_FORM_RATE = env.str("PUBLIC_FORM_RATE", default="10/hour")
CUSTOMER_CHANGE_RATE = env.str("CUSTOMER_CHANGE_RATE", default="10/hour")
CUSTOMER_MOVE_RATE = env.str("CUSTOMER_MOVE_RATE", default="2/hour")
CUSTOMER_TEXTS_PER_DAY = env.int("CUSTOMER_TEXTS_PER_DAY", default=20)
# Codes that confirm a member's phone: per member and per phone, per client's address, and per organization.
PHONE_CODE_RATE = env.str("PHONE_CODE_RATE", default="5/hour")
PHONE_CODE_ADDRESS_RATE = env.str("PHONE_CODE_ADDRESS_RATE", default="20/hour")
PHONE_CODE_ORGANIZATION_RATE = env.str("PHONE_CODE_ORGANIZATION_RATE", default="100/hour")
# Retention in days, by the names in `core.privacy.retention`, as "calls=400;events=400"; 0: forever. Other kinds
# keep the default that their slice registered.
RETENTION_DAYS = env.dict("RETENTION_DAYS", cast={"value": int}, default={})
# Events are kept at least this long, regardless of the rules of the organization and the installation.
EVENT_LOG_MIN_DAYS = env.int("EVENT_LOG_MIN_DAYS", default=365)
# What one organization may hold and request, unless its row in the admin says otherwise; 0: no limit.
LIMIT_SCHEDULES = env.int("LIMIT_SCHEDULES", default=1_000_000)
LIMIT_LEADS = env.int("LIMIT_LEADS", default=2_000_000)
LIMIT_MESSAGES = env.int("LIMIT_MESSAGES", default=2_000_000)
LIMIT_API_KEYS = env.int("LIMIT_API_KEYS", default=100)
LIMIT_SOCKETS = env.int("LIMIT_SOCKETS", default=500)
LIMIT_REQUESTS_PER_MINUTE = env.int("LIMIT_REQUESTS_PER_MINUTE", default=12_000)

# The file to which erasures, opt-outs and do-not-call entries are copied for the next restore; empty: none.
REPLAY_LIST_FILE = env.str("REPLAY_LIST_FILE", default="")
REPLAY_LIST_INTERVAL_S = env.float("REPLAY_LIST_INTERVAL_S", default=60.0)

# The geopy geocoder for addresses without a known ZIP code ("" = none), and its arguments as JSON.
GEOCODER = env.str("GEOCODER", default="")
GEOCODER_CONFIG = env.json("GEOCODER_CONFIG", default={})
# The OSRM-compatible server for drives by road ("" = none: straight lines), and how long a ranking waits for it.
OSRM_URL = env.str("OSRM_URL", default="").strip()
OSRM_TIMEOUT_S = env.float("OSRM_TIMEOUT_S", default=1.0)

# --- Loops (seconds) ------------------------------------------------------------------------------------------
LEADER_LEASE_S = env.float("LEADER_LEASE_S", default=5.0)
LEADER_RENEW_S = env.float("LEADER_RENEW_S", default=2.0)
AUDITOR_INTERVAL_S = env.float("AUDITOR_INTERVAL_S", default=5.0)
EVENT_READER_INTERVAL_S = env.float("EVENT_READER_INTERVAL_S", default=1.0)
# How often an open socket checks again whether its user may listen, and whether a push was lost.
SOCKET_RECHECK_S = env.float("SOCKET_RECHECK_S", default=15.0)
ALERT_LOOP_INTERVAL_S = env.float("ALERT_LOOP_INTERVAL_S", default=2.0)
CALL_PLACER_INTERVAL_S = env.float("CALL_PLACER_INTERVAL_S", default=0.5)
LINE_RECONCILER_INTERVAL_S = env.float("LINE_RECONCILER_INTERVAL_S", default=60.0)
CALL_RECONCILER_INTERVAL_S = env.float("CALL_RECONCILER_INTERVAL_S", default=15.0)
PRICE_INTERVAL_S = env.float("PRICE_INTERVAL_S", default=30.0)
SPEND_CAP_INTERVAL_S = env.float("SPEND_CAP_INTERVAL_S", default=5.0)
NUMBER_HEALTH_INTERVAL_S = env.float("NUMBER_HEALTH_INTERVAL_S", default=120.0)
# An outside address that is requested while loops and alerts work, so that their silence is noticed; empty: none.
DISPATCH_HEARTBEAT_URL = env.str("DISPATCH_HEARTBEAT_URL", default="")
HEARTBEAT_INTERVAL_S = env.float("HEARTBEAT_INTERVAL_S", default=60.0)
RETENTION_INTERVAL_S = env.float("RETENTION_INTERVAL_S", default=600.0)
