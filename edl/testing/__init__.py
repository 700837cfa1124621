"""Tools for tests of elastic jobs: `chaos` strikes parts of a real one, `fixtures` check that it has lost no sample.

`edl.clock.ManualClock`, `edl.coordination.memory_store.MemoryServer` and `edl.transport.memory_transport.MemoryNetwork`
are the fakes of single ports.
"""
