"""Format a scrape as text, for Prometheus and OpenMetrics. Only this module imports prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from edl.daemon.metrics.families import Family, Type

Encoder = Callable[[CollectorRegistry], bytes]


class FamilyCollector:
    """A collector over one snapshot."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for family in self._families:
            names = list(family.samples[0][0]) if family.samples else []
            kind = CounterMetricFamily if family.type is Type.COUNTER else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=names)
            for labels, value in family.samples:
                metric.add_metric([labels[name] for name in names], float(value))
            yield metric


def encoded(families: Sequence[Family], accepted: str) -> tuple[bytes, str]:
    """Return the page and its content type, in the form that the reader accepts."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FamilyCollector(families))
    encoder, content_type = choose_encoder(accepted)
    return encoder(registry), content_type
