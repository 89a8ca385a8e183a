"""VERL as the training backend: its own trainer on Ray, fed with Leyden's rollouts.

Only `verl_config`, `inside_verl.verl_queue` and `inside_verl.verl_trainer` import VERL: VERL's own processes import them,
and functions that need them.
"""
