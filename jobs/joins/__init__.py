"""Journal → usage: requests matched with their completions, and priced."""
