"""The data folder of a stack: users, secrets, locks, what it remembers."""
