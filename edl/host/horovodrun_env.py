"""What horovodrun tells each process that it starts, by its environment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edl.errors import ConfigError


class HorovodrunEnv(msgspec.Struct, frozen=True, kw_only=True):
    """Where horovodrun has put this process."""

    host: str  # its name among the driver's hosts
    slot: int  # its number on that host
    rank: int  # at the start
    size: int
    slots: int  # of them on the same host
    driver: str  # address of its rendezvous server
    port: int
    interface: str
    elastic: bool

    @property
    def name(self) -> str:
        """The slot, as the driver names it."""
        return f"{self.host}:{self.slot}"

    @property
    def one_host(self) -> bool:
        """No other host can take part."""
        return self.driver.startswith("127.")


def of(environ: Mapping[str, str]) -> HorovodrunEnv:
    """Raises ConfigError where horovodrun has not told all that it always tells."""
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
