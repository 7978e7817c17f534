"""The wire: bytes in, commands out. No I/O and no clock."""
