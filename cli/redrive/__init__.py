"""`weir dead-letters redrive`: which are sent again, what a program makes of them, what ingestion would say."""
