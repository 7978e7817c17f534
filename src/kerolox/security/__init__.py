"""Who a client is to its servers, and whom it believes: signed requests, and TLS."""
