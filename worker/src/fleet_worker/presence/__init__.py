"""The worker as the registry knows it: its record, its control line, draining, the machine it runs on."""
