"""The runner processes as the agent sees them."""
