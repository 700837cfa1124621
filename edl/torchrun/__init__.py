"""Scripts written for torchrun, unchanged: `edl torchrun train.py`, or `python -m edl.torchrun train.py` in a worker.

Owns: what stands in the place of torch's names in such a script. Does not own: training (`edl.torch`). No other room
imports it.
"""
