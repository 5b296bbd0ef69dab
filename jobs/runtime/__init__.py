"""All I/O of the applications: Spark, Kafka, Delta and Postgres, and how a job is run."""
