"""Export of a job's switches as spans, by OpenTelemetry's SDK over OTLP/HTTP. The SDK's own variables (OTEL_...)
configure it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from edl import __version__
from edl.exports.switches import Switch

LAST_MS = 5000  # to send the remaining spans at the end


class SpanSender:
    """The SDK sends in a thread; an unreachable receiver costs nothing but its spans."""

    def __init__(self, job: str) -> None:
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "edl"}
        self._provider = TracerProvider(resource=Resource.create({**named, "edl.job": job}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("edl", __version__)

    def take(self, switches: Iterable[Switch]) -> None:
        for one in switches:
            whole = self._tracer.start_span("switch", Context(), start_time=_ns(one.began), attributes=one.attributes)
            within = trace.set_span_in_context(whole, Context())
            for part in one.parts:
                span = self._tracer.start_span(
                    part.name, within, start_time=_ns(part.began), attributes=part.attributes
                )
                span.end(_ns(part.ended))
            whole.end(_ns(one.ended))

    def close(self) -> None:
        self._provider.force_flush(LAST_MS)
        self._provider.shutdown()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
