"""The run's side: it configures VERL, starts it and watches it. Imports nothing of VERL."""
