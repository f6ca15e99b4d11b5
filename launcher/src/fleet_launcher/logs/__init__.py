"""The log files of the parts."""
