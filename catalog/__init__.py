"""The catalog of accounts, plans and prices: its file, its store, and its changes on the way to the topics."""
