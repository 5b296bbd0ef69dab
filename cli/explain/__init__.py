"""`weir explain`: what can be asked, and how the answer is printed."""
