"""The four always-on Spark applications of Weir: ingestion, sessionization, joins, billing."""
