"""What agent and runner share: frames, limits, parent-death signal, working folders."""
