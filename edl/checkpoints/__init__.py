"""Checkpoints as they lie on a disk or in an object store: durable or absent (I16).

Owns: their form, writing, reading, and removing old ones. Does not own: when one is taken and of what, nor what a state
becomes in a model (each framework's face).
"""
