"""The live state in KV: the snapshots of runs, and the records of workers."""
