"""A scheduler in miniature: grows a running job, lets it train, shrinks it again, and says what each change cost.

edl run -np 2 --max-np 3 --job digits python examples/torch_digits.py --epochs 200 --step-time 0.05
python examples/scheduler.py digits          # meanwhile, in a second shell
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from edl.client import Ack, Job, Retry


def ask(call: Callable[[], Ack | Retry]) -> int:
    """Ask until the request is taken; return the size that the job is asked to have with it."""
    while isinstance(answer := call(), Retry):
        print(f"not now: {answer.reason}", flush=True)
        time.sleep(1.0)
    return answer.target


def train_steps(job: Job, steps: int) -> None:
    """Let the job train so many steps more."""
    until = job.status().step + steps
    while job.status().step < until:
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("--more", type=int, default=1, help="workers to add, and to take away again")
    parser.add_argument("--steps", type=int, default=20, help="steps to train at the larger size")
    options = parser.parse_args()
    with Job(options.job) as job:
        before = {worker.id for worker in job.status().workers}

        size = ask(lambda: job.scale_out(options.more))
        print(f"{size} workers asked for", flush=True)
        status = job.wait(size, timeout=300)
        new = [worker.id for worker in status.workers if worker.id not in before]
        print(f"{status.size} workers train; new: {', '.join(new)}", flush=True)

        train_steps(job, options.steps)
        size = ask(lambda: job.scale_in(new))  # just these, so that the others keep their ranks
        print(f"{job.wait(size, timeout=300).size} workers train", flush=True)

        for event in job.events():
            if event.kind == "scaled":
                change = event.details
                print(
                    f"{change['from']} -> {change['to']}: survivors paused for {change['pause_ms']:.0f} ms", flush=True
                )


if __name__ == "__main__":
    main()
