"""One function for each route of the gateway: what is sent, and how the answer is read."""
