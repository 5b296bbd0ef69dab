"""The proof: outcomes recomputed from the journal, and beside them what the stream made of it."""
