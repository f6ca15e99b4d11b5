"""`doctor`: asks every part of a fleet how it is, and judges what was answered and what was not."""
