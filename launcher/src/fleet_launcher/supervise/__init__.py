"""Processes: started, watched, restarted, ended."""
