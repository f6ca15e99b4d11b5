"""The gateway: renders nginx's configuration and holds the dashboard's files."""
