"""What the clients encode and decode for each message: natively, or by a twin in Python."""
