"""Records that all parts share: frozen structs, which are also the wire format, and what is read of any value."""
