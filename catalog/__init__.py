"""The catalog of accounts, plans and prices: its file, its store, and its changes on their way to the topics."""
