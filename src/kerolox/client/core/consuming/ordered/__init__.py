"""Queues that are read in order, decided without I/O: their locks, their turns."""
