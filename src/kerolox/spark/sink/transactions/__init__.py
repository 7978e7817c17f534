"""Exactly once: halves, which of them count, and their ends."""
