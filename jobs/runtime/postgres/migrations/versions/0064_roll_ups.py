"""Usage by the hour and by the account's month, kept by triggers in the transaction that writes windows and days.

A bill and a limit read months; a list of hours reads hours. Whatever writes windows and days (billing, `weir rebuild`,
an operator) keeps both: what is added and removed is summed, and what shrinks or moves is read again.

Both are filled here. Meanwhile billing waits, and readers do not.
"""

from __future__ import annotations

from alembic import op

revision = "0064"
down_revision = "0062"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""

TABLES = f"""
CREATE TABLE usage_hours (
    account       text NOT NULL,
    hour          timestamptz NOT NULL,
    model         text,
    meter         text NOT NULL,
    currency      text,
    price_version bigint,
    unit_price    numeric(20, 12),
    quantity      numeric NOT NULL,
    late_quantity numeric NOT NULL,
    unmetered_rows bigint NOT NULL,
    corrected     boolean NOT NULL,
    amount        numeric GENERATED ALWAYS AS (quantity * unit_price) STORED,
    CONSTRAINT usage_hours_key
        UNIQUE NULLS NOT DISTINCT (account, hour, model, meter, currency, price_version, unit_price)
);
COMMENT ON TABLE usage_hours IS
    'The sums of usage_windows by the hour of UTC, written in the same transaction by triggers.';

CREATE TABLE usage_months (
    account       text NOT NULL,
    month         date NOT NULL,
    model         text,
    meter         text NOT NULL,
    currency      text,
    price_version bigint,
    unit_price    numeric(20, 12),
    quantity      numeric NOT NULL,
    usage_rows    bigint NOT NULL,
    first_window  timestamptz NOT NULL,
    last_window_end timestamptz NOT NULL,
    corrected     boolean NOT NULL,
    next_position bigint,
    amount        numeric GENERATED ALWAYS AS (quantity * unit_price) STORED,
    CONSTRAINT usage_months_key
        UNIQUE NULLS NOT DISTINCT (account, month, model, meter, currency, price_version, unit_price)
);
CREATE INDEX usage_months_by_month ON usage_months (month);
COMMENT ON TABLE usage_months IS
    'The sums of usage_days by the account''s month, without dimensions, written in the same transaction by triggers.';

-- A row is written with most batches: with room in its page a new version needs no entry in any index.
ALTER TABLE usage_windows SET (fillfactor = 85);
ALTER TABLE usage_days SET (fillfactor = 70);
ALTER TABLE usage_hours SET (fillfactor = 70);
ALTER TABLE usage_months SET (fillfactor = 70);
-- For all accounts of a month: the planner expects the other indexes to cost more than reading all history.
CREATE INDEX usage_windows_by_time ON usage_windows USING brin (window_start) WITH (autosummarize = on);

ALTER TABLE usage_hours ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON usage_hours FOR SELECT USING {NAMED};
ALTER TABLE usage_months ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON usage_months FOR SELECT USING {NAMED};
"""

# Sums change by what is added and removed, in whichever order the triggers of one statement run. A minimum or maximum
# changes so only while it moves outwards, and a row stays only while it has rows below it: else both are read again.
CHANGED = """
        WITH changes AS (
            SELECT {of_key}, {changes}, {grows} AS grows
            FROM ({rows}) AS changed
            GROUP BY {numbers}
        ), summed AS (
            INSERT INTO {target} AS known ({key}, {columns})
            SELECT {key}, {columns} FROM changes ORDER BY {order}
            ON CONFLICT ON CONSTRAINT {target}_key DO UPDATE SET {added}
        )
        SELECT array_agg(account), array_agg({period}) INTO shrunk_accounts, shrunk_{period}
        FROM (SELECT DISTINCT account, {period} FROM changes WHERE NOT grows) AS shrunk;
"""
BOTH = "SELECT *, 1 AS way FROM new_rows UNION ALL SELECT *, -1 FROM old_rows"
REMOVED = "SELECT *, -1 AS way FROM old_rows"
FUNCTION = """
CREATE FUNCTION roll_up_{source}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    shrunk_accounts text[];
    shrunk_{period} {type}[];
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        TRUNCATE {target};
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO {target} AS known ({key}, {columns})
        SELECT {of_key}, {sums} FROM new_rows AS changed GROUP BY {numbers} ORDER BY {order}
        ON CONFLICT ON CONSTRAINT {target}_key DO UPDATE SET {added};
    ELSIF TG_OP = 'UPDATE' THEN
        {updated}
    ELSE
        {deleted}
    END IF;
    IF shrunk_accounts IS NOT NULL THEN
        -- What is read next has all that was added to these rows: whoever is adding to one has ended, or waits.
        PERFORM FROM unnest(shrunk_accounts, shrunk_{period}) AS shrunk (of_account, begins)
        JOIN {target} AS known ON account = of_account AND {period} = begins
        ORDER BY {period}, account, model, meter, currency, price_version, unit_price FOR UPDATE OF known;
        INSERT INTO {target} ({key}, {columns})
        SELECT {of_key}, {nothing}, {outwards}
        FROM unnest(shrunk_accounts, shrunk_{period}) AS shrunk (of_account, begins) JOIN {source} AS changed
          ON account = of_account AND {at} >= begins AND {at} < begins + interval '1 {unit}'
        GROUP BY {numbers}
        ON CONFLICT ON CONSTRAINT {target}_key DO UPDATE SET {read_again};
        DELETE FROM {target} AS known
        USING unnest(shrunk_accounts, shrunk_{period}) AS shrunk (of_account, begins)
        WHERE account = of_account AND {period} = begins AND NOT EXISTS (
            SELECT FROM {source} AS changed
            WHERE changed.account = of_account AND {at} >= begins AND {at} < begins + interval '1 {unit}'
              AND (changed.model, changed.meter, changed.currency, changed.price_version, changed.unit_price)
                  IS NOT DISTINCT FROM
                  (known.model, known.meter, known.currency, known.price_version, known.unit_price)
        );
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER roll_up_inserted AFTER INSERT ON {source} REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION roll_up_{source}();
CREATE TRIGGER roll_up_updated AFTER UPDATE ON {source} REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION roll_up_{source}();
CREATE TRIGGER roll_up_deleted AFTER DELETE ON {source} REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION roll_up_{source}();
CREATE TRIGGER roll_up_truncated AFTER TRUNCATE ON {source}
    FOR EACH STATEMENT EXECUTE FUNCTION roll_up_{source}();
"""

MONTH = "date_trunc('month', day::timestamp)::date"
_KEY = "account, {period}, model, meter, currency, price_version, unit_price"
_SUMMED = {"usage_windows": ("quantity", "late_quantity", "unmetered_rows"), "usage_days": ("quantity", "usage_rows")}
_OUTWARDS = {
    "usage_windows": {"corrected": ("bool_or", "OR")},
    "usage_days": {
        "first_window": ("min", "least"),
        "last_window_end": ("max", "greatest"),
        "corrected": ("bool_or", "OR"),
        "next_position": ("max", "greatest"),
    },
}
_PLACES = {
    "usage_windows": {
        "target": "usage_hours",
        "period": "hour",
        "type": "timestamptz",
        "unit": "hour",
        "at": "window_start",
        "of_period": "date_trunc('hour', window_start, 'UTC')",
    },
    "usage_days": {
        "target": "usage_months",
        "period": "month",
        "type": "date",
        "unit": "month",
        "at": "day",
        "of_period": MONTH,
    },
}


def _sum(name: str, way: str = "") -> str:
    """Of bigints again a bigint."""
    return f"trim_scale(sum({way}{name}))" if name.endswith("quantity") else f"sum({way}{name})::bigint"


def _words(source: str) -> dict[str, str]:
    """What FUNCTION and FILL have to say of windows or days."""
    place, summed, outwards = _PLACES[source], _SUMMED[source], _OUTWARDS[source]
    key = _KEY.format(period=place["period"])
    merged = {"OR": "known.{0} OR excluded.{0}", "least": "least(known.{0}, excluded.{0})"}
    merged["greatest"] = merged["least"].replace("least", "greatest")
    sides = {
        name: [f"{of}({name}) FILTER (WHERE way = {way})" for way in (1, -1)] for name, (of, _) in outwards.items()
    }
    # An earlier release left no position.
    moves = {"min": "{} <= {}", "max": "({0} >= {1} OR {1} IS NULL)", "bool_or": "{} >= {}"}
    words = {
        **place,
        "source": source,
        "key": key,
        "of_key": key.replace(place["period"], f"{place['of_period']} AS {place['period']}", 1),
        "numbers": ", ".join(str(number) for number in range(1, 8)),
        # By time first: the index of hours has one range of time for many pages.
        "order": "2, 1, 3, 4, 5, 6, 7",
        "columns": ", ".join([*summed, *outwards]),
        "sums": ", ".join([*map(_sum, summed), *(f"{of}({name})" for name, (of, _) in outwards.items())]),
        "changes": ", ".join(
            [
                *(f"{_sum(name, 'way * ')} AS {name}" for name in summed),
                *(f"coalesce({new}, {old}) AS {name}" for name, (new, old) in sides.items()),
            ]
        ),
        "grows": " AND ".join(
            ["coalesce(sum(way) = 0", *(moves[of].format(*sides[name]) for name, (of, _) in outwards.items())]
        )
        + ", false)",
        "nothing": ", ".join("0" for _ in summed),
        "outwards": ", ".join(f"{of}({name})" for name, (of, _) in outwards.items()),
        "read_again": ", ".join(f"{name} = excluded.{name}" for name in outwards),
        "added": ", ".join(
            [
                *(
                    f"{name} = trim_scale(known.{name} + excluded.{name})"
                    if name.endswith("quantity")
                    else f"{name} = known.{name} + excluded.{name}"
                    for name in summed
                ),
                *(f"{name} = {merged[how].format(name)}" for name, (_, how) in outwards.items()),
            ]
        ),
    }
    return {
        **words,
        **{name: CHANGED.format(**words, rows=rows) for name, rows in (("updated", BOTH), ("deleted", REMOVED))},
    }


FILL = """
INSERT INTO {target} ({key}, {columns})
SELECT {of_key}, {sums} FROM {source} GROUP BY {numbers} ORDER BY {order}
"""


def upgrade() -> None:
    """Make both tables, fill them, and have them kept."""
    # A fold begins with its position. One with members of periods writes days before windows: it would wait for this.
    op.execute("SELECT FROM positions WHERE job = 'billing' FOR UPDATE")
    for source in _PLACES:
        # Readers go on; who writes waits, so that nothing is between the sums and the triggers.
        op.execute(f"LOCK TABLE {source} IN SHARE ROW EXCLUSIVE MODE")
    op.execute(TABLES)
    for source in _PLACES:
        words = _words(source)
        op.execute(FUNCTION.format(**words))
        op.execute(FILL.format(**words))
    # It knows what is there when it is made; of what comes later it learns page by page.
    op.execute("CREATE INDEX usage_hours_by_hour ON usage_hours USING brin (hour) WITH (autosummarize = on)")
    op.execute("ANALYZE usage_hours, usage_months")


def downgrade() -> None:
    """Remove them again: a release before sums minutes and days."""
    op.execute("DROP INDEX usage_windows_by_time")
    op.execute("ALTER TABLE usage_windows RESET (fillfactor); ALTER TABLE usage_days RESET (fillfactor)")
    for source, place in _PLACES.items():
        for event in ("inserted", "updated", "deleted", "truncated"):
            op.execute(f"DROP TRIGGER roll_up_{event} ON {source}")
        op.execute(f"DROP FUNCTION roll_up_{source}(); DROP TABLE {place['target']}")
