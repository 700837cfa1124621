"""Streams: shards without a length, what is made of their records, and places from which both go on."""
