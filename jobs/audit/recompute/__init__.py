"""What the journal must have made of usage, and the signed rows that correct what differs."""
