"""Where a run's agents work: worker processes, a live object, Ray, other machines."""
