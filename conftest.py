"""What holds for every test: Hypothesis judges what is computed, not how fast a busy machine computes it."""

from hypothesis import HealthCheck, settings

settings.register_profile("leyden", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("leyden")
