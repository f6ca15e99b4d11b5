"""The commands of `pyoco-server`."""
