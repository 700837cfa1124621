"""Loops that own machines and carry out their commands: daemon, leader, trainer."""
