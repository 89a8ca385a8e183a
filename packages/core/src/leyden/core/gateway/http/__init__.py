"""The gateway's HTTP server: connections, request bodies, metrics and errors."""
