"""Bugs that are planted to prove that the tests see them: each is one change of the text of one file."""
