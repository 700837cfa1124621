"""A job under a real Slurm of one machine, by the batch script of docs/slurm.md: preempted, requeued, it goes on."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.core.audit.account import account
from edl.trainer.data.audit import read

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
DAEMONS = ("munged", "slurmctld", "slurmd")
LINE = "edl run -np 2 --job mnist --checkpoint ~/checkpoints python train.py &"
CONF = """
ClusterName=edl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The commands of a cluster of one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        others = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
        self.environ = {**others, "SLURM_CONF": str(folder / "slurm.conf")}

    def __call__(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_up(self) -> bool:
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=self.environ, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() == "idle"

    def shown(self, job: str, name: str) -> str:
        found = re.search(rf"\b{name}=(\S*)", self("scontrol", "show", "job", job))
        assert found is not None
        return found[1]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


@pytest.fixture
def slurm(edl, tmp_path: Path) -> Iterator[Slurm]:
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed: apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("only root can run Slurm's daemons")
    folder = tmp_path / "slurm"
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)  # munged looks at the folder of its socket
    (folder / "munge").chmod(0o700)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    values = {"host": socket.gethostname().partition(".")[0], "folder": folder, "ports": free_ports(2)}
    (folder / "slurm.conf").write_text(CONF.format(**values))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    found = Slurm(folder)
    munge = [f"--key-file={key}", f"--socket={folder}/munge.sock", f"--seed-file={folder}/munge/seed"]
    munge += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log"]
    conf = str(folder / "slurm.conf")
    with contextlib.ExitStack() as stack:
        for command in (
            ["munged", "--foreground", "--force", *munge],
            ["slurmctld", "-D", "-f", conf],
            ["slurmd", "-D", "-f", conf],
        ):
            log = stack.enter_context((folder / f"{command[0]}.out").open("wb"))
            process = subprocess.Popen(command, env=found.environ, stdout=log, stderr=log)
            stack.callback(end, process)
        edl.wait(found.is_up, "a Slurm that is up")
        yield found


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def batch_script(folder: Path, line: str) -> str:
    """The one in the documentation, with another line to run."""
    scripts = re.findall(r"```bash\n(#!.*?)```", (ROOT / "docs" / "slurm.md").read_text(), re.DOTALL)
    (found,) = [script for script in scripts if LINE in script]
    path = folder / "preempted.sbatch"
    path.write_text(found.replace(LINE, line))
    return str(path)


def test_a_job_is_preempted_requeued_and_goes_on(edl, tmp_path, slurm):
    audit, training = tmp_path / "audit", ROOT / "examples" / "torch_preempted.py"
    program = Path(sys.executable)
    job = f"-np 2 --job mnist --checkpoint {tmp_path}/checkpoints --audit {audit}"
    script = f"{program} {training} --step-time 0.03 &"
    line = f"EDL_HOME={edl.home} PYTHONPATH={ROOT} {program.with_name('edl')} run {job} {script}"
    output = f"--output={tmp_path}/output"
    number = slurm("sbatch", "--parsable", output, batch_script(tmp_path, line)).strip()
    said = lambda: (tmp_path / "output").read_text() if (tmp_path / "output").exists() else ""  # noqa: E731
    edl.wait(lambda: "step 20 in all" in said(), "a job that trains", timeout_s=180)

    slurm("scancel", "--signal=TERM", "--batch", number)
    edl.wait(lambda: slurm.shown(number, "Restarts") == "1", "requeued", timeout_s=60)
    edl.wait_nothing_left()
    assert "is preempted, and goes on when the same line is typed again" in said()
    # Slurm lets it wait for two minutes. Started earlier, it is refused: the credential of its first start was revoked.
    edl.wait(lambda: slurm.shown(number, "JobState") == "COMPLETED", "the end", timeout_s=300)

    found = account(read(audit))
    assert found.clean and all(epoch.over for epoch in found.epochs), found
    assert [one.life for one in found.lives] == [1, 2]
    assert found.lives[1].parent_step > 20
    assert f"edl: job mnist goes on from step {found.lives[1].base}, " in said()
    assert re.search(rf"accuracy 0\.[89]\d* after {found.steps} steps", said())
