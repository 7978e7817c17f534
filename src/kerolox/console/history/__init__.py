"""Rates and lag over a week: taken from the cluster now and then, kept in SQLite."""
