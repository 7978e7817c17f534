"""The asyncio producers."""
