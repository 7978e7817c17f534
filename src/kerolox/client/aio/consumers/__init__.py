"""The asyncio consumers."""
