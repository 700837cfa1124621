"""Arguments of the commands about checkpoints, and about the audit of a job's samples."""

from __future__ import annotations

from collections.abc import Sequence

from edl.cli.command_arguments import Commands, add_job, add_settings, add_switch, command, group, later

DATA_EXAMPLES = """
example:
  edl data verify audit           what became of every sample of a job that was run with --audit audit
"""
VERIFY_SUMMARY = "say whether every sample was trained once"
VERIFY_EXAMPLES = """
examples:
  edl run --audit audit python train.py
  edl data verify audit           per epoch: how many samples were trained, lost, repeated, and the first of those
  edl data verify audit --json | jq .clean
  edl data verify audit-1 audit-2 all lives of a job that was resumed, where each had a folder of its own

Exit code: 0 when nothing is lost or repeated, 1 when something is, 2 when DIR holds no audit that can be read.
"""
CHECKPOINT_EXAMPLES = """
examples:
  edl checkpoint mnist --wait                   save job mnist now; returns once that is durable
  edl checkpoint ls checkpoints                 all checkpoints of all jobs in that folder
  edl checkpoint verify s3://bucket/checkpoints --job mnist
"""
LS_EXAMPLES = """
examples:
  edl checkpoint ls checkpoints
  edl checkpoint ls checkpoints --job mnist --json | jq '.checkpoints[0].step'

The newest comes first. "durable": the manifest is right, and all files are as long as it says. `verify` reads them.
"""
SHOW_EXAMPLES = """
examples:
  edl checkpoint show checkpoints/mnist         the newest that is whole
  edl checkpoint show checkpoints/mnist/0001-000001-000000000500 --json | jq .ledger
"""
CHECK_EXAMPLES = """
examples:
  edl checkpoint verify checkpoints             each byte of each checkpoint there
  edl checkpoint verify checkpoints/mnist/0001-000001-000000000500

Exit code: 0 when the newest checkpoint of each job is whole, 1 when one is not, 2 when DIR holds no checkpoint.
"""
NOW_EXAMPLES = """
examples:
  edl checkpoint mnist               ask for a checkpoint
  edl checkpoint mnist --wait        and return once it is durable: prints its path
"""
NOW = "now"
CHECKPOINTS = {
    "ls": ("ls", "list checkpoints", LS_EXAMPLES),
    "show": ("show_one", "show what a checkpoint has", SHOW_EXAMPLES),
    "verify": ("verify", "say whether every byte of them is as it was written", CHECK_EXAMPLES),
}


def job_named(argv: Sequence[str]) -> list[str]:
    """Read `edl checkpoint JOB` as `edl checkpoint now JOB`: a word that is none of its commands is the name of a
    job.
    """
    words = list(argv)
    if words[:1] == ["checkpoint"] and len(words) > 1 and words[1] not in {*CHECKPOINTS, NOW, "-h", "--help"}:
        words.insert(1, NOW)
    return words


def add_data(found: Commands) -> None:
    commands = group(found, "data", "check what became of a job's samples", DATA_EXAMPLES)
    parser = command(commands, "verify", later("data_commands", "verify"), VERIFY_SUMMARY, VERIFY_EXAMPLES)
    parser.add_argument(
        "folders",
        metavar="DIR",
        nargs="+",
        help="the folder that EDL_AUDIT or --audit named; several, where lives of the job had one each",
    )
    add_switch(parser, "--json", "one JSON object")


def add_checkpoint(found: Commands) -> None:
    commands = group(found, "checkpoint", "save a job now, or look at checkpoints", CHECKPOINT_EXAMPLES)
    summary = "save a job now: `edl checkpoint JOB`"
    parser = command(commands, NOW, later("save_commands", "checkpoint"), summary, NOW_EXAMPLES)
    add_job(parser)
    add_switch(parser, "--wait", "return once the checkpoint is durable, and print where it is")
    for name, (act, summary, examples) in CHECKPOINTS.items():
        parser = command(commands, name, later("checkpoint", act), summary, examples)
        parser.add_argument("folder", metavar="DIR", help="a folder or URL of checkpoints, of a job's, or one of them")
        add_settings(parser, "job", text="only those of this job")
        add_switch(parser, "--json", "one JSON object")
