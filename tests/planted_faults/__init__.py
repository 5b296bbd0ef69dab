"""Thirteen kinds of wrong money, planted one by one in committed rows of joins and billing: the audit finds each."""
