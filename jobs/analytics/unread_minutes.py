"""Since when no outcome has been read yet: what is declared now, a view or a pattern, can begin there."""

UNREAD_SINCE = """greatest(
        (SELECT max(window_start) + interval '1 minute' FROM analytics_panes),
        (SELECT max(since) FROM analytics_views),
        -- What watches or patterns alone have looked at is in no pane.
        (SELECT last_minute + interval '1 minute' FROM watch_progress),
        (SELECT max(minute) + interval '1 minute' FROM pattern_outcomes),
        (SELECT greatest(max(since), nullif(max(final_until), 'epoch')) FROM analytics_patterns)
    )"""
"""An SQL expression: that minute, or null before the first outcome."""
