"""Arguments of `edl dashboard`, `edl top` and `edl report`."""

from __future__ import annotations

from edl.cli.cluster_flags import add_elsewhere
from edl.cli.command_arguments import Commands, add_job, add_switch, add_value, command, later

DASHBOARD_EXAMPLES = """
examples:
  edl dashboard                   of the job that runs here; prints the link that opens its page
  edl dashboard mnist --port 8000 --allow-scale
                                  always at the same port, with buttons: grow, shrink, checkpoint, stop
  edl dashboard                   of the cluster, where one runs here: its queue, its nodes, who had which device
  edl dashboard --cluster https://node1:8443
  ssh -L 8000:127.0.0.1:8000 node1
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


def add_dashboard(found: Commands) -> None:
    summary = "show a job as a page that lives"
    parser = command(found, "dashboard", later("dashboard", "dashboard"), summary, DASHBOARD_EXAMPLES)
    add_job(parser, nargs="?")
    add_value(parser, "--port", "PORT", "of this machine (default: any free one)", default="0")
    add_elsewhere(parser)
    add_switch(parser, "--allow-scale", "give the page buttons: grow, shrink, checkpoint, stop")


def add_top(found: Commands) -> None:
    parser = command(found, "top", later("top", "top"), "show a job in the terminal as it goes on", TOP_EXAMPLES)
    add_job(parser, nargs="?")


def add_report(found: Commands) -> None:
    summary = "write the page of a job as one file"
    parser = command(found, "report", later("report_command", "report"), summary, REPORT_EXAMPLES)
    add_job(parser)
    add_value(parser, "--html", "FILE", "the file", required=True)
