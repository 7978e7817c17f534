"""Message traces, decided without I/O: records, their text, the hook that makes them."""
