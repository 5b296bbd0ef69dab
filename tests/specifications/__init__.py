"""Second implementations, which `differential` tests compare with the columns and the SQL that meter."""
