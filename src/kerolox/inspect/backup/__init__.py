"""Copies of a store that are taken while its broker runs, and what is done with them."""
