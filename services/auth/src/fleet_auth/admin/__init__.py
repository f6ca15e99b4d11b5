"""pyoco-server-admin: keys, backups and the secrets of containers, straight in NATS."""
