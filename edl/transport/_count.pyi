from edl.transport.step_counter import Count as Count
