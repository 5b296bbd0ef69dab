"""A quarter of a year of usage through the shipped sinks, compared with what its truth comes to, to the last digit.

`make quarter` runs 100,000 events; `make test` some hundred. The truth, and what it comes to, import nothing of Weir.
"""
