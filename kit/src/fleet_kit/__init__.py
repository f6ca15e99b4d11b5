"""What every process of the fleet needs, whatever its business is."""
