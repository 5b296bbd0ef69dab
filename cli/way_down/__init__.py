"""From a bill's line down to the records of Kafka: what `weir explain` reads, and how it tells it."""
