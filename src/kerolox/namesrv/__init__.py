"""The name server: which broker has which topic, and which brokers are alive."""
