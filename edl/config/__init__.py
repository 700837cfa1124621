"""The settings of a job, and where each comes from: a keyword or flag, else the environment, else the default.

Owns: names, forms and defaults of all settings, in one table for the command line, the environment and `edl.init`. Does
not own: the settings of a connection to ZooKeeper (`edl.coordination`), a launcher's record of a job on this machine
(`edl.host.job_discovery`), nor the processes that are started with the settings.
"""

from __future__ import annotations

from edl.config.settings import Given, Settings, mistyped, scrubbed
from edl.config.settings_table import TABLE, Setting

__all__ = ["TABLE", "Given", "Setting", "Settings", "mistyped", "scrubbed"]
