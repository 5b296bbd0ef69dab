"""Generated traffic with known trouble, and the truth about it.

Nothing here uses code of `jobs`: the truth would be worth nothing if it shared its mistakes. Every event is placed at
least a margin (60 s) from each boundary that would change its fate; `placement` says which boundaries there are.
"""
