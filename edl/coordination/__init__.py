"""Coordination: the nodes that a job keeps in ZooKeeper, and the election of its leader there. Only this package knows
kazoo.
"""
