"""One job in the agent's hands: claim, lease, execution, disposition."""
