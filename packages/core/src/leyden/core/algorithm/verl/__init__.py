"""VERL as the training backend: its own trainer on Ray, fed with Leyden's rollouts.

Only `verl_config`, `inside_verl.verl_queue` and `inside_verl.verl_trainer` import VERL: they are imported by VERL's own
processes, and by functions that need them.
"""
