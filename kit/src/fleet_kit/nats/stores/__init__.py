"""Keys and objects that JetStream keeps."""
