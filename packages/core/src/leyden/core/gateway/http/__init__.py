"""The gateway's HTTP server. What a request says is read elsewhere."""
