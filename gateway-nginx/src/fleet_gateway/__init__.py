"""The public door: renders nginx's configuration and carries the dashboard's files."""
