"""Changing and deleting topics where they are."""
