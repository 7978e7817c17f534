"""The answers of the cold path, one file per family of requests."""
