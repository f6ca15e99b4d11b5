"""Measurements side by side with the peer: ours and `pyoco-server`, interleaved in one run."""
