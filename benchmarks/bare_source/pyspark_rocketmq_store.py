"""Hides Kerolox' own module of this name from Spark's search, with which other systems pay it."""
