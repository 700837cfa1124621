"""Requests to a job from outside, as `edl status` and a scheduler make them."""
