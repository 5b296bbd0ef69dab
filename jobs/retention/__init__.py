"""How long rows are kept: whole days go from the old end, never past a reader, an open month or the rules' rows."""
