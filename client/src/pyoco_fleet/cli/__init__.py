"""The command `pyoco-client`. Only what a command needs is imported, so that `--help` is there at once."""
