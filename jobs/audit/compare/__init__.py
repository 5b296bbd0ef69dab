"""What is stored beside what must be: the differences, row by row."""
