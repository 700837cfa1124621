"""Find the cluster that a command speaks to: that of EDL_HOME, or one at another address."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from edl.cli.commands import heed_interrupts
from edl.config import Settings
from edl.errors import ConfigError
from edl.scheduler.cluster_access import ClusterHere, ReachedCluster
from edl.scheduler.cluster_home import OWN, ClusterHome

TOKEN = "token"  # noqa: S105 - name of a file below EDL_HOME


def home_of(arguments: argparse.Namespace) -> tuple[Settings, ClusterHome]:
    """Raises ConfigError."""
    settings = Settings.from_given(arguments.given, os.environ)
    home = ClusterHome(settings.home, os.environ.get(OWN) or None)
    if not is_remote(arguments):
        home.check()
    return settings, home


def is_remote(arguments: argparse.Namespace) -> bool:
    return bool(getattr(arguments, "cluster", None))


def reached(arguments: argparse.Namespace) -> ReachedCluster:
    """Raises ConfigError."""
    settings, home = home_of(arguments)
    if not is_remote(arguments):
        if getattr(arguments, "token_file", None) or getattr(arguments, "ca_file", None):
            raise ConfigError("--token-file and --ca-file go with --cluster URL")
        return ClusterHere(home, heed_interrupts)
    from edl.scheduler.remote_cluster import RemoteCluster  # only here: TLS and HTTP
    from edl.scheduler.tokens import read_token

    token = read_token(Path(arguments.token_file) if arguments.token_file else settings.home / TOKEN)
    return RemoteCluster(arguments.cluster, token, arguments.ca_file or None)
