"""Delta → Postgres, all of it again: the tables of billing or sessionization, after the database was lost."""
