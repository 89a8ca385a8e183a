"""Why each rollout and each call of a run was trained or not, from its folder and its store alone."""
