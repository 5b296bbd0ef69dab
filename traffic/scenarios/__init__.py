"""The kinds of trouble. Each scenario sends the records of one call and writes down what must come of them."""
