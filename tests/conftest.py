"""For all tests: machines are shared, so no example of a property test fails for having taken long."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")
