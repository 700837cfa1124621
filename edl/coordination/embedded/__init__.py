"""The embedded coordinator: the state of `edl.coordination.memory_store` in a process of its own, for jobs of one
machine.

Owns: the process, its journal, its wire format, and the store port on it. docs/decisions/embedded.md says why it
exists.
"""
