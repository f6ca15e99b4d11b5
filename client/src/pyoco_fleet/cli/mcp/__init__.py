"""The MCP server: tools with which an AI assistant reads the fleet, and changes it if it is allowed to."""
