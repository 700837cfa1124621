from edl.transport.count import Count as Count
