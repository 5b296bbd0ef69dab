"""What else grows over years, as SQL: panes, matches, hits, thresholds, invoices, webhooks, audits and batches.

Like `bench.history_rows`, which is filled before: `:windows` windows of `:accounts` accounts in `:days` days before
UNTIL. Triggers and foreign keys are off meanwhile, so no row makes another.
"""

from __future__ import annotations

import psycopg
from psycopg.types.json import Jsonb

from bench.history_rows import sized
from jobs.settings.views import ViewConfig

_COUNTED = {"of": "outcomes", "measures": {"requests": "count"}}
VIEW_CONFIGS = {
    "model_health": {**_COUNTED, "by": ["account", "model"]},
    "models": {**_COUNTED, "by": ["model"], "gauges": {"top": 5}},
}
VIEWS = {name: ViewConfig.model_validate(config).view(name) for name, config in VIEW_CONFIGS.items()}
VIEW = VIEWS["model_health"]
PATTERN, WATCH, ENDPOINT = "retries", "watch-1", "ep_1"
PATTERN_DEFINITION = {"partition_by": ["account"], "pattern": "A{3}", "within_seconds": 600, "grace_seconds": 300}
ISSUER = "Weir"

DECLARED = """
INSERT INTO analytics_views (view, version, definition, first_position, is_declared) VALUES (%s, %s, %s, 1, true);
"""
ANALYTICS = """
INSERT INTO jobs (job, epoch, owner_pid, owner_started_at, started_at, config, state)
VALUES ('analytics', 1, 1, now(), now(), %s, 'running')
"""
DECLARED_PATTERN = """
INSERT INTO analytics_patterns (pattern, version, definition, first_position, is_declared) VALUES (%s, 'v', %s, 1, true)
"""

RECORDS = f"""
INSERT INTO positions (job, input, next_position, frontier) VALUES ('analytics', 'usage', 2, '2026-11-28T18:00Z');

INSERT INTO analytics_panes (view_id, window_start, account, keys, measures)
SELECT 1, window_start, account, jsonb_build_array(account, model), '{{"requests": "3"}}'
FROM usage_windows WHERE meter = 'requests' GROUP BY window_start, account, model ORDER BY 2, 3;
INSERT INTO analytics_panes (view_id, window_start, keys, measures)
SELECT 2, window_start, jsonb_build_array(model), '{{"requests": "3"}}'
FROM usage_windows WHERE meter = 'requests' GROUP BY window_start, model ORDER BY 2;

-- Every tenth match was revised: its first version has a retraction after it.
INSERT INTO pattern_matches (pattern_id, match_id, version, is_retracted, account, keys, first_lsn, last_lsn,
    started_at, ended_at, outcomes, measures)
SELECT 1, 'match-' || i, version, version = 2, 'account-' || i % :accounts,
       jsonb_build_object('account', 'account-' || i % :accounts), i, i, at, at + interval '1 minute', 3, '{{}}'
FROM (
    SELECT i, '2026-11-28T18:00Z'::timestamptz
              - make_interval(secs => 86400.0 * :days * (1 - i / (:windows / 50.0))) AS at
    FROM generate_series(1, :windows / 50) AS i
) AS placed CROSS JOIN LATERAL generate_series(1, 1 + (i % 10 = 0)::int) AS version;

INSERT INTO watches (name, condition, columns, added_by, first_position, calls_from)
SELECT 'watch-' || i, 'status = ''error''', '{{"status": "text"}}', 'somebody', 1, 1 FROM generate_series(1, 5) AS i;
INSERT INTO watch_hours (watch_id, hour, hits)
SELECT watch_id, hour, 10 + watch_id
FROM generate_series(0, :days * 24 - 1) AS ago, generate_series(1, 5) AS watch_id,
     LATERAL (SELECT '2026-11-28T17:00Z'::timestamptz - make_interval(hours => ago) AS hour) AS at;
INSERT INTO watch_hits (watch_id, hour, request_lsn, completion_lsn, net, event_time, account, request_id)
SELECT watch_id, hour, 1, number, 1, hour + interval '1 minute', 'account-' || number % :accounts, 'r-' || number
FROM watch_hours CROSS JOIN generate_series(1, 10) AS number;

INSERT INTO threshold_changes (account, period, first_day, meter, currency, threshold, version, is_crossed, used,
    frontier, changed_at)
SELECT 'account-' || account, 'P1M', month, 'input_tokens', '', threshold * 1000, 1, true, threshold * 1001, at, at
FROM generate_series(0, :accounts - 1) AS account, generate_series(0, :days / 30 - 1) AS ago,
     generate_series(1, 10) AS threshold,
     LATERAL (SELECT ('2026-11-01'::date - make_interval(months => ago))::date AS month) AS months,
     LATERAL (SELECT month + make_interval(days => 2 * threshold, secs => account) AS at) AS crossed;

ALTER TABLE invoice_lines DISABLE TRIGGER USER;
ALTER TABLE invoice_events DISABLE TRIGGER USER;
INSERT INTO invoices (invoice, issuer, number, account, kind, period, period_start, period_end, timezone, currency,
    minor_unit, rounding, lines, total, residual, usage_position, frontier, audit_id)
SELECT 'W-' || number, '{ISSUER}', number, 'account-' || account, 'invoice', month, month, month + interval '1 month',
       'UTC', CASE account % 2 WHEN 0 THEN 'EUR' ELSE 'USD' END, 2, 'half-even', 3, 3, 0, 1, month, 1
FROM generate_series(1, :days / 30) AS ago, generate_series(0, :accounts - 1) AS account,
     LATERAL (SELECT ('2026-11-01'::date - make_interval(months => ago))::date AS month,
                     (:days / 30 - ago)::bigint * :accounts + account + 1 AS number) AS numbered
ORDER BY number;
-- Every twentieth invoice corrects a line of the month before.
INSERT INTO invoice_lines (invoice, line, account, kind, charge_class, original_period, corrects_invoice,
    corrects_line, model, meter, price_version, unit_price, quantity, exact_amount, amount, residual, hash)
SELECT invoice, line, account, 'usage', CASE WHEN corrects THEN 'Correction' END,
       CASE WHEN corrects THEN (period - interval '1 month')::date ELSE period END,
       CASE WHEN corrects THEN 'W-' || number - :accounts END, CASE WHEN corrects THEN line END,
       'model-1', 'input_tokens', line, 1, 1, 1, 1, 0, md5(invoice || line)
FROM invoices CROSS JOIN generate_series(1, 3) AS line,
     LATERAL (SELECT line = 3 AND number % 20 = 0 AND number > :accounts AS corrects) AS what;
INSERT INTO invoice_events (account, sequence, invoice, state, at, made_by, document, previous, hash)
SELECT account, 2 * ((number - 1) / :accounts) + place, invoice, state,
       period_end + make_interval(secs => number % :accounts), 'somebody', '{{}}', '', md5(invoice || state)
FROM invoices CROSS JOIN unnest(ARRAY['Open', 'Issued']) WITH ORDINALITY AS states (state, place);
ALTER TABLE invoice_lines ENABLE TRIGGER USER;
ALTER TABLE invoice_events ENABLE TRIGGER USER;

INSERT INTO webhook_endpoints (endpoint, url, events, changed_by)
VALUES ('{ENDPOINT}', 'https://example.com', '{{correction}}', 'somebody');
INSERT INTO webhook_events (event_id, type, account, made_at, body, endpoints)
SELECT 'evt_' || md5(i::text), 'correction', 'account-' || i % :accounts,
       '2026-11-28T18:00Z'::timestamptz - make_interval(secs => 86400.0 * :days * (1 - i / (:windows / 50.0))), '{{}}',
       '{{{ENDPOINT}}}'
FROM generate_series(1, :windows / 50) AS i;
-- The last hundred wait or are dead; all before were delivered.
INSERT INTO webhook_deliveries (endpoint, number, account, state, attempts, next_attempt_at, settled_at)
SELECT '{ENDPOINT}', number, account, state, 1, made_at, CASE WHEN state <> 'waiting' THEN made_at END
FROM (SELECT *, CASE WHEN number <= (SELECT max(number) - 100 FROM webhook_events) THEN 'delivered'
                     WHEN number % 2 = 0 THEN 'dead' ELSE 'waiting' END AS state FROM webhook_events) AS events;
INSERT INTO webhook_attempts (number, endpoint, attempted_at, account, status, duration_ms)
SELECT number, endpoint, next_attempt_at, account, 200, 5 FROM webhook_deliveries;
UPDATE webhook_position SET queued_to = (SELECT max(number) FROM webhook_events);

INSERT INTO audits (started_at, finished_at, version, is_proved, billed_to, corrected)
SELECT at, at + interval '1 minute', '1', true, 1, CASE ago % 10 WHEN 0 THEN '{{"repriced": 1}}' ELSE '{{}}' END::jsonb
FROM generate_series(:days - 1, 0, -1) AS ago,
     LATERAL (SELECT '2026-11-28T03:00Z'::timestamptz - make_interval(days => ago) AS at) AS began;
INSERT INTO batches (job, first_position, next_position, epoch, records, duration_ms, committed_at)
SELECT job, 1 + i, 2 + i, 1, 1, 1, '2026-11-28T18:00Z'::timestamptz - make_interval(hours => :days * 24 - i)
FROM unnest(ARRAY['billing', 'sessionization', 'analytics']) AS job, generate_series(1, :days * 24) AS i;
INSERT INTO exits (job, ended_at, how, reason)
SELECT 'billing', '2026-11-28T18:00Z'::timestamptz - make_interval(days => ago), 'crashed', 'out of memory'
FROM generate_series(1, :days) AS ago;
"""


def fill_records(url: str, *, windows: int, accounts: int, days: int) -> None:
    """Fill a database that `bench.history_rows.fill` has filled."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET work_mem = '64MB'; SET session_replication_role = replica")
        for name, view in VIEWS.items():
            connection.execute(DECLARED, [name, view.version, Jsonb(view.definition)])
        connection.execute(ANALYTICS, [Jsonb({"views": VIEW_CONFIGS, "watches": True})])
        connection.execute(DECLARED_PATTERN, [PATTERN, Jsonb(PATTERN_DEFINITION)])
        connection.execute(sized(RECORDS, windows=windows, accounts=accounts, days=days))
        connection.execute("VACUUM ANALYZE")
