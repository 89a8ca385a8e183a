"""What `store.py` measures, each thing in a process of its own: `python -m stores.worker`."""
