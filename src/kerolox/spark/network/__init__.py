"""How planning and tasks reach name servers and brokers, without an event loop."""
