"""Backups of a store, taken while its broker runs, and their restore."""
