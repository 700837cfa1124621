"""Elastic horovodrun's driver, a guest of the core."""
