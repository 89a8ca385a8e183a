"""VERL as the training backend: its own trainer on Ray, fed with Leyden's rollouts.

Only `inside_verl.verl_*` import VERL, and only VERL's own processes and functions that need it import those.
"""
