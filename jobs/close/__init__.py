"""The batch application that closes months: usage that an audit has proved → invoices."""
