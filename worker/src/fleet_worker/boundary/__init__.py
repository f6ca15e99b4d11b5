"""Shared by agent and runner: frames, limits, parent-death signal, working folders."""
