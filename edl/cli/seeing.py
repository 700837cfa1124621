"""What `edl dashboard`, `edl top` and `edl report` say of themselves."""

from __future__ import annotations

DASHBOARD_EXAMPLES = """
examples:
  edl dashboard                   of the job that runs here; prints the link that opens its page
  edl dashboard mnist --port 8000 --allow-scale
                                  always at the same port, with buttons: grow, shrink, checkpoint, stop
  edl dashboard                   of the cluster, where one runs here: its queue, its nodes, who had which device
  edl dashboard --cluster https://node1:8443
  ssh -L 8000:localhost:8000 node1
                                  and then that link, from your own machine

The page is served on 127.0.0.1 until Ctrl-C. Who has the link can look; the job does not notice.
"""
TOP_EXAMPLES = """
examples:
  edl top                         the job that runs here; Ctrl-C leaves it
  edl top mnist | head -20        once, as plain lines, where the output is no terminal
"""
REPORT_EXAMPLES = """
examples:
  edl report mnist --html mnist.html
                                  one file with all that is on record of the job: open it in any browser
"""
