"""Threads that bring the files to disk."""
