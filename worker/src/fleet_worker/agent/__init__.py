"""The agent: the asyncio process that talks to NATS."""
