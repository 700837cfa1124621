"""For all tests: machines are shared, so no example of a property test fails for having taken long."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "write what follows in tests/transcripts anew, to be looked at"
    parser.addoption("--rewrite-transcripts", action="store_true", help=what)
