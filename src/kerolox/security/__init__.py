"""Accounts and TLS: signed requests, access control, certificates."""
