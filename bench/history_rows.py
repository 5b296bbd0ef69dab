"""Years of billed usage as SQL: `:windows` windows of `:accounts` accounts in `:days` days, with what belongs to them.

A twentieth of the accounts has half of the windows, about eleven minutes every day. The others are used on days apart.
All of it ends at UNTIL. Windows in proportion to the days make the same present with a longer past.
"""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg

UNTIL = datetime(2026, 11, 28, 18, tzinfo=UTC)
METERS = ("requests", "input_tokens", "output_tokens")

WINDOWS = """
INSERT INTO usage_windows (account, model, meter, currency, price_version, window_start, window_end, quantity,
    unit_price, late_quantity, late_rows)
SELECT 'account-' || account, 'model-' || (account + day % 2) % 20, meter,
       CASE account % 2 WHEN 0 THEN 'EUR' ELSE 'USD' END, number, minute, minute + interval '1 minute',
       CASE meter WHEN 'requests' THEN 1 + turn % 5 ELSE 100 + turn * 31 % 9973 END, 0.000001500000, 0, 0
FROM (
    SELECT account, turn, day, date_trunc('day', '2026-11-28T18:00Z'::timestamptz) - make_interval(days => day)
           + make_interval(hours => 8 + account % 10, mins => turn * 7 % 60) AS minute
    FROM (
        SELECT account, turn, turn * :days / (:windows / 6 / (:accounts / 20)) AS day
        FROM generate_series(0, :accounts / 20 - 1) AS account,
             generate_series(0, :windows / 6 / (:accounts / 20) - 1) AS turn
        UNION ALL
        SELECT account, turn, turn / 10 * 10 * :days / (:windows / 6 / (:accounts - :accounts / 20))
        FROM generate_series(:accounts / 20, :accounts - 1) AS account,
             generate_series(0, :windows / 6 / (:accounts - :accounts / 20) - 1) AS turn
    ) AS placed
) AS used
CROSS JOIN unnest(ARRAY['requests', 'input_tokens', 'output_tokens']) WITH ORDINALITY AS meters (meter, number)
ORDER BY minute, account
"""

DAYS = """
INSERT INTO usage_days (account, day, model, meter, currency, price_version, quantity, unit_price, usage_rows,
    first_window, last_window_end)
SELECT account, (window_start AT TIME ZONE 'UTC')::date, model, meter, currency, price_version, sum(quantity),
       max(unit_price), count(*), min(window_start), max(window_end)
FROM usage_windows GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 2, 1
"""

SESSIONS = """
INSERT INTO sessions (account, user_id, session_start, session_end, events, version)
SELECT 'account-' || i % :accounts, 'u-' || i % 9973, ended - interval '1 minute', ended, 7, 1
FROM (
    SELECT i, '2026-11-28T18:00Z'::timestamptz
           - make_interval(secs => 86400.0 * :days * (:windows / 5 - i) / (:windows / 5)) AS ended
    FROM generate_series(1, :windows / 5) AS i
) AS placed;
"""

REST = """
INSERT INTO catalog.plans VALUES ('plan', 'Plan') ON CONFLICT DO NOTHING;
INSERT INTO catalog.accounts (account, name, plan, currency, timezone)
SELECT 'account-' || i, 'Account ' || i, 'plan', CASE i % 2 WHEN 0 THEN 'EUR' ELSE 'USD' END,
       (ARRAY['UTC', 'Europe/Berlin', 'America/New_York'])[i % 3 + 1]
FROM generate_series(0, :accounts - 1) AS i ON CONFLICT DO NOTHING;
INSERT INTO catalog.limits (account, meter, period, effective_from, quantity)
SELECT 'account-' || i, 'input_tokens', 'P1M', '2024-01-01', 1000000000
FROM generate_series(0, :accounts - 1) AS i ON CONFLICT DO NOTHING;
INSERT INTO meters (meter, unit, sums, is_declared) VALUES ('requests', 'request', NULL, true),
    ('input_tokens', 'token', 'input_tokens', true), ('output_tokens', 'token', 'output_tokens', true)
ON CONFLICT DO NOTHING;
INSERT INTO stragglers (usage_lsn, meter, account, model, request_id, window_start, event_time, received_at,
    late_seconds, decision, quantity, unit_price, currency, price_version, settled, hold_until)
SELECT i, 'requests', 'account-' || i % :accounts, 'model-1', 'r-' || i, at, at, at + interval '1 hour', 3540,
       'correct', 1, 0.0001, 'EUR', 1, nextval('settled_stragglers'),
       CASE i % 10 WHEN 0 THEN at + interval '2 hours' END
FROM (
    SELECT i, '2026-11-28T18:00Z'::timestamptz - make_interval(secs => 86400.0 * :days * i / (:windows / 25)) AS at
    FROM generate_series(1, :windows / 25) AS i
) AS placed;
INSERT INTO corrections (usage_lsn, meter, usage_lsns, window_start, account, model, currency, cause, decision,
    old_quantity, new_quantity, old_amount, new_amount, corrected_at)
SELECT usage_lsn, meter, ARRAY[usage_lsn], date_trunc('minute', window_start), account, model, currency, 'stream',
       'correct', 1, 2, 0.0001, 0.0002, received_at FROM stragglers;
INSERT INTO correction_consumers (consumer, of_accounts, number, key_id)
SELECT 'ledger', '*', max(number) - 100, 'key' FROM corrections ON CONFLICT DO NOTHING;
"""

PROGRESS = """
INSERT INTO jobs (job, epoch, owner_pid, owner_started_at, started_at, config, state, progress)
SELECT job, 1, 1, now(), now(), '{"grace_seconds": 300, "session_gap_seconds": 1800}', 'running',
       jsonb_build_object('records_behind', 0, 'waiting', 0, 'frontier', '2026-11-28T18:00Z'::timestamptz)
FROM unnest(ARRAY['ingestion', 'sessionization', 'joins', 'billing']) AS job ON CONFLICT DO NOTHING;
INSERT INTO positions (job, input, next_position, frontier)
VALUES ('billing', 'usage', 2, '2026-11-28T18:00Z'), ('sessionization', 'journal', 2, '2026-11-28T18:00Z')
ON CONFLICT DO NOTHING;
"""


def fill(url: str, *, windows: int, accounts: int, days: int) -> None:
    """Fill an empty, migrated database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET work_mem = '64MB'")
        for rows in (WINDOWS, DAYS, SESSIONS, REST, PROGRESS):
            connection.execute(sized(rows, windows=windows, accounts=accounts, days=days))
        connection.execute("VACUUM ANALYZE")


def sized(rows: str, **sizes: int) -> bytes:
    """The statement with its sizes: `windows`, `accounts`, `days`."""
    for name, size in sizes.items():
        rows = rows.replace(f":{name}", str(size))
    return rows.encode()
