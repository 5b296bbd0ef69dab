"""What-if replay: a period of the journal, metered and billed again by other prices or rules, beside the live bills."""
