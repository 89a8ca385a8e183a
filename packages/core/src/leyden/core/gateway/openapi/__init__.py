"""The page that describes the gateway's paths."""
