"""What the adapters' campaign is made of: a system of three agents in each framework, its model, and what must hold."""
