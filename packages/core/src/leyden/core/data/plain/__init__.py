"""Any value as plain data, whatever an agent brings: read, reduced where it cannot be kept, and marked."""
