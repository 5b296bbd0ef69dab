"""What the measured dashboard shows: `:windows` usage windows of 50 accounts, and what belongs to them, as SQL."""

from __future__ import annotations

FILL = """
INSERT INTO usage_windows (account, model, meter, currency, price_version, window_start, window_end, quantity,
    unit_price)
SELECT 'account-' || i % 50, 'model-' || i / 50 % 2,
       (ARRAY['requests', 'input_tokens', 'output_tokens'])[i / 100 % 3 + 1],
       CASE WHEN i % 50 < 25 THEN 'EUR' ELSE 'USD' END, 1 + i / 100 % 3,
       minute, minute + interval '1 minute', 1 + i % 977, 0.000000150000
FROM (
    SELECT i, date_trunc('minute', now()) - make_interval(mins => i / 300) AS minute
    FROM generate_series(0, :windows - 1) AS i
) AS numbered;

INSERT INTO catalog.plans VALUES ('plan', 'Plan');
INSERT INTO catalog.accounts (account, name, plan, currency, timezone)
SELECT 'account-' || i, 'Account ' || i, 'plan', CASE WHEN i < 25 THEN 'EUR' ELSE 'USD' END,
       (ARRAY['UTC', 'Europe/Berlin', 'America/New_York'])[i % 3 + 1]
FROM generate_series(0, 49) AS i;

INSERT INTO usage_days (account, day, model, meter, currency, price_version, quantity, unit_price, usage_rows,
    first_window, last_window_end)
SELECT w.account, (window_start AT TIME ZONE timezone)::date, model, meter, w.currency, price_version, sum(quantity),
       max(unit_price), count(*), min(window_start), max(window_end)
FROM usage_windows AS w JOIN catalog.accounts USING (account)
GROUP BY 1, 2, 3, 4, 5, 6;

INSERT INTO stragglers (usage_lsn, meter, account, model, request_id, window_start, event_time, received_at,
    late_seconds, decision, quantity, unit_price, currency, price_version)
SELECT i, 'requests', 'account-' || i % 50, 'model-1', 'r-' || i, now() - make_interval(secs => i * 8),
       now() - make_interval(secs => i * 8), now() - make_interval(secs => i * 4), i * 4, 'correct', 1, 0.0001, 'EUR', 1
FROM generate_series(1, 20000) AS i;

INSERT INTO sessions (account, user_id, session_start, session_end, events, version)
SELECT 'account-' || i % 50, 'u-' || i, ended - interval '1 minute', ended, 7, 1
FROM (SELECT i, now() - make_interval(secs => i / 2) AS ended FROM generate_series(1, 200000) AS i) AS numbered;

INSERT INTO sources (source, account, account_seen_at, first_seen_at, last_seen_at, sequences)
SELECT 'gateway/' || i, 'account-1', now(), now(), now(), '{[1,100),[110,2000)}' FROM generate_series(1, 300) AS i;

INSERT INTO jobs (job, epoch, owner_pid, owner_started_at, started_at, config, state, progress)
SELECT job, 1, 1, now(), now(), '{"grace_seconds": 300, "session_gap_seconds": 1800, "source_silent_after_seconds": 900,
       "source_retired_after_seconds": 86400,
       "source_seen_once_retired_after_seconds": 3600}',
       'running', jsonb_build_object('records_behind', 0, 'frontier', now())
FROM unnest(ARRAY['ingestion', 'sessionization', 'joins', 'billing']) AS job;
INSERT INTO positions (job, input, next_position, frontier)
VALUES ('billing', 'usage', 2, now()), ('sessionization', 'journal', 2, now());
"""
