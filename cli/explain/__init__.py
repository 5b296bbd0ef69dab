"""`weir explain`: its questions, and how answers are printed."""
