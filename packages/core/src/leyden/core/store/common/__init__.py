"""What every store that keeps rows itself has in common. A backend adds rows and transactions."""
