"""What a child that multiprocessing spawns does of what its script says as it is imported: it joins no job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, multiprocessing, sys

def tried(act):
    try:
        return repr(act())
    except edl.errors.EdlError as error:
        return f"{type(error).__name__}: {error}"

if __name__ != "__main__":  # the parent has no need to wait for these
    import torch
    import edl.torch as edl

    edl.init()
    model = torch.nn.Linear(2, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    shards = edl.elastic_shard_generator(8, epochs=1)
    loader = edl.ElasticDataLoader(range(8), batch_size=2, epochs=1)
    edl.register(best=1.0)
    edl.on_resize(print)
    edl.scale_rate("linear", 8)
    edl.schedule_rate(edl.Warmup(1))
    model(torch.ones(1, 2)).backward()
    optimizer.step()
    told = {
        "seat": [edl.rank(), edl.size(), edl.local_rank(), edl.rehearsing()],
        "step": tried(edl.step),
        "resumed": tried(edl.resumed),
        "shards": tried(lambda: next(iter(shards.batches(2)))),
        "loader": tried(lambda: next(iter(loader))),
        "end": tried(edl.notify_batch_end),
        "report": tried(lambda: edl.report(loss=1.0)),
        "shutdown": tried(edl.shutdown),
    }

def work():
    from edl.torch.torch_process import trainer
    trainer._kind = lambda settings: sys.exit("it begins to join")
    try:
        trainer.init()
    except SystemExit as joining:
        print(json.dumps(told | {"joins": str(joining)}), flush=True)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""


@pytest.mark.slow
def test_it_joins_nothing_until_its_function_says_so(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
    environ |= {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "3", "HOROVOD_LOCAL_RANK": "2", "EDL_HOME": str(tmp_path)}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # the edl of this process
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, env=environ, timeout=100
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    assert (told.pop("seat"), told.pop("shutdown"), told.pop("joins")) == (
        [1, 3, 2, False],
        "None",
        "it begins to join",
    )
    assert len(told) == 6
    for said in told.values():
        assert said.startswith("UsageError: edl") and "is no worker of the job: use edl under `if __name__" in said
