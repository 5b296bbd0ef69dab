"""`weir dead-letters replay`: which are sent again, what a program makes of them, what ingestion would say."""
