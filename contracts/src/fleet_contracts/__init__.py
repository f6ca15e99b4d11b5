"""What goes over the wire: messages, names and ids that every process agrees on."""
