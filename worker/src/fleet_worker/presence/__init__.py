"""The worker as the registry knows it: its record, its control line, the machine it runs on."""
