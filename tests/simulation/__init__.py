"""A simulator: the shipped sinks, sources and drivers over real Delta tables and a real Postgres, in virtual time.

A history is a list of steps that a seed draws: records come, drivers run for so many outside calls and then die, are
frozen or get no answer; others start beside them; tables are compacted, lost, exchanged. Whatever happened, the end
must be what an oracle makes of the same journal at once (`oracle`). Stands in for Spark (`frames`, `rules`) and for
Kafka (`kafka`); nothing else is replaced.
"""
