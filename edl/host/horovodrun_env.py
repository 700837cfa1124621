"""The environment in which horovodrun starts each process."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edl.errors import ConfigError


class HorovodrunEnv(msgspec.Struct, frozen=True, kw_only=True):
    """The place that horovodrun has given this process."""

    host: str  # name of this host in the driver's list
    slot: int  # number of this process on its host
    rank: int  # at the start
    size: int
    slots: int  # number of processes on the same host
    driver: str  # address of the driver's rendezvous server
    port: int
    interface: str
    elastic: bool

    @property
    def name(self) -> str:
        """Return the slot's name, as the driver writes it."""
        return f"{self.host}:{self.slot}"

    @property
    def one_host(self) -> bool:
        """Return True if no other host can take part."""
        return self.driver.startswith("127.")


def of(environ: Mapping[str, str]) -> HorovodrunEnv:
    """Read horovodrun's variables. Raises ConfigError if one of them is missing or wrong."""
    try:
        return HorovodrunEnv(
            host=environ["HOROVOD_HOSTNAME"],
            slot=int(environ["HOROVOD_LOCAL_RANK"]),
            rank=int(environ["HOROVOD_RANK"]),
            size=int(environ["HOROVOD_SIZE"]),
            slots=int(environ["HOROVOD_LOCAL_SIZE"]),
            driver=environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
            port=int(environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
            interface=environ["HOROVOD_GLOO_IFACE"],
            elastic=environ.get("HOROVOD_ELASTIC") == "1",
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"this process looks started by horovodrun, but its environment is incomplete ({error!r}): "
            "start it by `horovodrun --gloo`, or by `edl run`"
        ) from None
