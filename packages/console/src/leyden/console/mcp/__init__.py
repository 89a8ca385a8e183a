"""MCP: what the console shows, as read-only tools of the Model Context Protocol for coding agents."""
