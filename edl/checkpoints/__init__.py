"""Checkpoints on a disk or in an object store: durable or absent (I16).

Owns: their form, writing, reading, and removing old ones. Does not own: when a checkpoint is taken and of which state,
nor how a state is loaded into a model (each framework's adapter).
"""
