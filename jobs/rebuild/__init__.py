"""Rebuilds the Postgres tables of billing or sessionization from Delta, after the database was lost."""
