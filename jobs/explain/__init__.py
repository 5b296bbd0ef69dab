"""From a bill's line down to the records of Kafka: what is read, and what it comes to."""
