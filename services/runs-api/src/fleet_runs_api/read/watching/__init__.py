"""Watches runs: one consumer per process follows the KV bucket, and every watcher gets the changes of its runs."""
