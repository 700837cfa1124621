from edl.transport.shared_page import Count as Count
