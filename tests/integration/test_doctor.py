"""`edl doctor` on a machine that scripts/setup made ready."""

import os

import pytest

from edl.launch import doctor
from edl.launch.doctor import Health

pytestmark = pytest.mark.integration


def test_nothing_is_wrong_here():
    assert [check for check in doctor.look(os.environ) if check.outcome is Health.FAIL] == []


def test_whatever_is_not_right_comes_with_a_remedy():
    checks = doctor.look({**os.environ, "EDL_ZOOKEEPER_PORT": "0"})
    assert any(check.outcome is Health.FAIL for check in checks)
    assert all(bool(check.remedy) == (check.outcome is not Health.OK) for check in checks)
