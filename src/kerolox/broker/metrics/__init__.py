"""Counters, rates and times that the broker shows."""
