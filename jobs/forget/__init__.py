"""`weir forget`: what names a person goes from every table; quantities, money and every check stay equal."""
