"""Commands that ask no server: contexts, completion, files of settings."""
