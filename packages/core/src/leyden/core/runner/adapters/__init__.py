"""How an agent of any framework is found and run."""
