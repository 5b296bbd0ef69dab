"""The Spark applications of Weir: ingestion, sessionization, joins, billing, and analytics where views are declared."""
