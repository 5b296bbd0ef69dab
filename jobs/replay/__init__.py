"""A period of the journal, metered and billed again beside what is live: by other prices, or other rules."""
