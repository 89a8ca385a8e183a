"""Several training runs on one machine: their list, budgets and processes, the HTTP API, and its client."""
