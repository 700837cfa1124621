from edl.transport.shared_page import StepCounter as Count

__all__ = ["Count"]
