"""Part of pyoco-fleet."""
