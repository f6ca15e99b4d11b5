"""Dead letters: what could not be brought to a good end, kept, shown and tried again."""
