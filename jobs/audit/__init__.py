"""The audit: outcomes recomputed from the journal and compared with what the stream made of it."""
