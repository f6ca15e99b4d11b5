"""Files and disks: secrets, nkeys, YAML, free space."""
