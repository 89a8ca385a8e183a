"""What the adapters benchmark is made of: the ways of recording, and a driver for each framework."""
