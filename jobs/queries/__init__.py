"""What was billed, as the command line and the API list it: each question and its money are defined here, once."""
