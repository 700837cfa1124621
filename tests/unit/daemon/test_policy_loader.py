"""A user's policy runs in a process of its own, by that worker's own settings: nothing that arrives names code."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edl.clock import SystemClock
from edl.config import Settings
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Input, Reported, Ruled
from edl.core.job.leader_machine import JobMachine, new_record
from edl.daemon import policy_child, policy_loader, policy_process
from edl.daemon import policy_runner as governor_module
from edl.daemon.policy_loader import Code, own_code, read_code, tabulated, try_policy
from edl.daemon.policy_process import Load, PolicyFailed, PolicyProcess
from edl.daemon.policy_runner import PolicyRunner
from edl.errors import ConfigError
from edl.policy.policy_job_view import View, WorkerView
from edl.protocol import leader_messages as say
from edl.protocol.job_policy import Batching, BatchRule, JobPolicy
from edl.protocol.record import Identity, JobState, Member, WorkerState, decode_record, encode_record
from edl.transport.call_errors import Refusals
from edl.transport.service import Service, Speaker

VIEW = View(now=1.0, step=7, size=2, minimum=1, maximum=4, workers=(WorkerView(id="w0", rank=0, host="h"),))


def code(folder: Path, text: str, name: str = "Mine", option: str = policy_loader.AUTOSCALE) -> Code:
    (folder / "mine.py").write_text(text)
    return read_code(option, f"{folder / 'mine.py'}:{name}")


def deciding(statement: str, before: str = "") -> str:
    body = f"class Mine:\n    def decide(self, view):\n        {statement}\n"
    return f"from edl.policy.policy_job_view import Decision\n{before}\n{body}"


def settings(autoscale: str = "", **others: Any) -> Settings:
    return Settings(job="j", autoscale=autoscale, **others)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -------------------------------------------------------------------------------------------------- its own process


def test_it_sees_the_view_and_decides_in_another_process(tmp_path: Path) -> None:
    decide = (
        "print('noise'); return Decision(view.size + 1, f'{view.workers[0].id} in {os.getpid()}', numbers={'x': 1})"
    )
    with PolicyProcess(code(tmp_path, deciding(decide, "import os"))) as process:
        process.load()
        first, second = process.decide(VIEW), process.decide(VIEW)
        assert first == second and first is not None
        assert (first.size, first.reason, first.numbers) == (3, f"w0 in {process.pid}", {"x": 1.0})
    assert process.pid != os.getpid() and not is_running(process.pid)


def test_it_may_have_no_opinion_and_numbers_of_numpys(tmp_path: Path) -> None:
    decide = "return None if view.step < 7 else Decision(np.int64(3), 'why', numbers={'x': np.float32(0.5)})"
    with PolicyProcess(code(tmp_path, deciding(decide, "import numpy as np"))) as process:
        process.load()
        assert process.decide(msgspec.structs.replace(VIEW, step=1)) is None
        decision = process.decide(VIEW)
        assert decision is not None and decision.size == 3 and decision.numbers == {"x": 0.5}


WRONG = [
    ("raise RuntimeError('two are too many')", r"^raised RuntimeError\('two are too many'\)$"),
    ("import sys; sys.exit(3)", r"^raised SystemExit\(3\)$"),
    ("return 5", "^gave an answer that is none: "),
    ("return Decision('5', 'why')", "^gave an answer that is none: "),
    ("return Decision(5, object())", "is neither a number nor a text"),
    ("return Decision(2, 'why', shares={'w0': float('nan')})", "^gave shares that are no positive numbers"),
    ("return Decision(2, 'why', shares={'w0': 0})", "^gave shares that are no positive numbers"),
]
FATAL = [
    ("import os; os._exit(3)", "^has ended: its process is gone$"),
    ("import time; time.sleep(60)", "^has not answered within 0.5 s$"),
    ("import signal, os; os.kill(os.getpid(), signal.SIGSTOP)", "^has not answered within 0.5 s$"),
]


def test_whatever_it_does_is_told_in_words(tmp_path: Path) -> None:
    by_step = "\n".join(f"        if view.step == {step}: {statement}" for step, (statement, _) in enumerate(WRONG))
    with PolicyProcess(code(tmp_path, deciding(f"pass\n{by_step}"))) as process:
        process.load()
        for step, (_, said) in enumerate(WRONG):
            with pytest.raises(PolicyFailed, match=said):
                process.decide(msgspec.structs.replace(VIEW, step=step))


@pytest.mark.parametrize(("statement", "said"), FATAL)
def test_one_that_hangs_or_ends_is_told_of_and_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, said: str
) -> None:
    with PolicyProcess(code(tmp_path, deciding(statement))) as process:
        process.load()
        if "0.5 s" in said:
            monkeypatch.setattr(policy_process, "DECIDE_S", 0.5)
        with pytest.raises(PolicyFailed, match=said):
            process.decide(VIEW)
    assert not is_running(process.pid)


def test_one_whose_import_hangs_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_process, "BOOT_S", 0.5)
    code(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(ConfigError, match=r"^--autoscale policy=.*mine\.py:Mine: has not answered within 0\.5 s$"):
        try_policy(settings(f"policy={tmp_path / 'mine.py'}:Mine"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_thing", "^ModuleNotFoundError: No module named 'no_such_thing'$"),
        ("def f(:", "^SyntaxError: "),
        ("x = 1", r"mine\.py has no Mine$"),
        ("import sys; sys.exit('no')", "^SystemExit: no$"),
        ("class Mine:\n    pass", r"^Mine has no method decide\(view\)$"),
        ("class Mine:\n    def __init__(self): raise KeyError('K')", r"^Mine\(\) raised KeyError\('K'\)$"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_words(text: str, said: str) -> None:
    with pytest.raises(policy_child.Wrong, match=said):
        policy_child.load(Load("/somewhere/mine.py", text.encode(), "Mine", is_class=True))
    sys.modules.pop("mine", None)


def test_dataclasses_find_the_module_that_they_are_declared_in() -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass, KW_ONLY\n"
    text += "@dataclass\nclass Mine:\n    _: KW_ONLY\n    x: int = 3\n    def decide(self, view): return None\n"
    assert policy_child.load(Load("/somewhere/mine.py", text.encode(), "Mine", is_class=True)).x == 3
    sys.modules.pop("mine", None)


def test_it_is_ended_while_it_is_waited_for(tmp_path: Path) -> None:
    process = PolicyProcess(code(tmp_path, deciding("import time; time.sleep(60)")))
    process.load()

    async def race() -> None:
        asking = asyncio.ensure_future(asyncio.to_thread(process.decide, VIEW))
        await asyncio.sleep(0.1)
        process.close()
        with pytest.raises(PolicyFailed, match="has ended"):
            await asking

    began = time.monotonic()
    asyncio.run(race())
    assert time.monotonic() - began < policy_process.DECIDE_S and not is_running(process.pid)
    process.close()


# --------------------------------------------------------------------------------------------------------- the batch


def test_a_function_is_asked_once_for_all_sizes(tmp_path: Path) -> None:
    code(tmp_path, "def ours(workers):\n    return 6 * workers if workers < 3 else 18\n")
    text = tabulated(f"function={tmp_path / 'mine.py'}:ours", 4)
    assert text == "table=1:6,2:12,3:18,4:18"
    assert policy_loader.batching(text, None) == Batching(BatchRule.TABLE, table=((1, 6), (2, 12), (3, 18), (4, 18)))
    assert tabulated("fixed-local,most=5", 4) == "fixed-local,most=5"


def test_a_function_that_is_wrong_is_told_in_words(tmp_path: Path) -> None:
    code(tmp_path, "def ours(workers):\n    return 1 / (workers - 2)\n")
    with pytest.raises(
        ConfigError, match=r"^--batch-policy function=.*mine\.py:ours: returned -1\.0 for 1 workers; it"
    ):
        tabulated(f"function={tmp_path / 'mine.py'}:ours", 4)
    with pytest.raises(policy_child.Wrong, match=r"^it returned 0 for 1 workers; it must return the number of samples"):
        policy_child.tabulate(lambda _: 0, 4)
    with pytest.raises(policy_child.Wrong, match=r"^it raised ZeroDivisionError\(.*\) for 2 workers$"):
        policy_child.tabulate(lambda workers: workers // (2 - workers), 4)


# -------------------------------------------------------------------------------------------------------- its digest


def test_a_digest_is_of_the_content_and_of_what_is_meant_by_it(tmp_path: Path) -> None:
    one = code(tmp_path, "class Mine: ...\n")
    assert one.digest == "sha256:" + hashlib.sha256(b"class Mine: ...\n\nMine").hexdigest()
    assert read_code(policy_loader.AUTOSCALE, f"{tmp_path / 'mine.py'}:Other").digest != one.digest
    (tmp_path / "copy.py").write_bytes(one.source)
    assert read_code(policy_loader.AUTOSCALE, f"{tmp_path / 'copy.py'}:Mine").digest == one.digest
    assert code(tmp_path, "class Mine: pass\n").digest != one.digest


def test_what_was_typed_stays_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    one = code(tmp_path, deciding("return None"))
    kept = tmp_path / "kept.py"
    kept.write_bytes(one.source)
    (tmp_path / "mine.py").unlink()
    text = f"policy={tmp_path / 'mine.py'}:Mine,cooldown=1,dry-run"
    again = own_code(settings(text, policy_file=kept))
    assert again is not None and again.digest == one.digest
    assert policy_loader.job_policy(settings(text, policy_file=kept), again).autoscale == (
        f"policy={one.digest},cooldown=1,dry-run"
    )
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        own_code(settings(text))


def test_a_name_that_is_not_installed_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"policy=unknown: is neither FILE\.py:CLASS nor an entry point"):
        own_code(settings("policy=unknown"))


# ------------------------------------------------------------------------------------------------- what may be said

TRAP = "import pathlib; pathlib.Path({!r}).touch()\nclass Mine:\n    def decide(self, view): return None\n"
HOSTILE = [
    JobPolicy(autoscale="policy=/tmp/evil.py:Mine"),
    JobPolicy(autoscale="policy=os:system"),
    JobPolicy(autoscale="policy=sha256:" + "0" * 63),
    JobPolicy(autoscale="policy=sha256:" + "g" * 64),
    JobPolicy(autoscale="policy=sha256:" + "0" * 64 + "\n"),
    JobPolicy(autoscale="policy=sha256:" + "0" * 64 + ",cooldown=1e9"),
    JobPolicy(autoscale="efficiency=__import__('os')"),
    JobPolicy(autoscale="efficiency=0.1,stride=" + "9" * 400),
    JobPolicy(stragglers="shoot"),
    JobPolicy(every=0),
    JobPolicy(every=-(2**40)),
    JobPolicy(batching=Batching(BatchRule.TABLE, table=((0, 1),))),
    JobPolicy(batching=Batching(BatchRule.TABLE, table=((1, -1),))),
    JobPolicy(batching=Batching(BatchRule.LOCAL, most=-1)),
    JobPolicy(utility="x" * 200_000),
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_what_has_another_form_is_refused_with_valid_keys_too(hostile: JobPolicy) -> None:
    heard = []

    async def handle(call: object) -> say.Reply:
        heard.append(call)
        return say.Done()

    refusals = Refusals()
    service = Service(b"k" * 32, "j", handle, request_types=say.Request, refusals=refusals)
    service.term = 1
    service.address = "h:1"
    speaker = Speaker(b"k" * 32, "j", "w0", "h:1")
    register = say.Register(Identity("w0", "h", "127.0.0.1", 1, 2), 2, 1, 0)
    for said, taken in ((register, True), (msgspec.structs.replace(register, job_policy=hostile), False)):
        before = len(heard)
        await service.answer(speaker.seal(said, 1))
        assert len(heard) - before == taken
    assert refusals.snapshot() == {"unknown_message": 1}
    record = msgspec.structs.replace(new_record("j", 0.0), job_policy=hostile)
    with pytest.raises(msgspec.ValidationError):
        decode_record(encode_record(record))


# ------------------------------------------------------------------------------------------------------- who leads


class Lead:
    """A governor of a job that trains, and what it rules."""

    def __init__(self, job_policy: JobPolicy, own: Code | None) -> None:
        record = new_record("j", 0.0)
        record = msgspec.structs.replace(
            record,
            job_policy=job_policy,
            state=JobState.RUNNING,
            generation=1,
            roster=("w0",),
            target=1,
            members=(Member(Identity("w0", "h", "127.0.0.1", 1, 2), WorkerState.TRAINING, 1),),
        )
        self.ruled: list[Ruled] = []
        self._has_ruled = asyncio.Event()
        self._machine = JobMachine(record, LeadTimes.of(1.0))
        self.governor = PolicyRunner(self._machine, SystemClock(), self._put, own)

    async def _put(self, happened: Input) -> None:
        assert isinstance(happened, Ruled)
        self.ruled.append(happened)
        self._has_ruled.set()

    async def _train(self) -> None:
        for step in itertools.count(1):
            seen = say.Observation(phase=say.Phase.TRAINING, generation=1, step=step)
            self._machine.handle(Reported("w0", seen), time.monotonic())
            await asyncio.sleep(governor_module.LOOK_S)

    async def until_ruled(self, looks_more: int = 5) -> list[str]:
        """Its words; some looks later, as nothing is to be said twice."""
        running = asyncio.gather(self.governor.run(), self._train())
        async with asyncio.timeout(30):
            await self._has_ruled.wait()
        await asyncio.sleep(looks_more * governor_module.LOOK_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return [one.reason for one in self.ruled]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governor_module, "LOOK_S", 0.01)


@pytest.mark.parametrize("has_own", [True, False])
@pytest.mark.usefixtures("quick")
async def test_code_that_the_record_names_is_never_run(tmp_path: Path, has_own: bool) -> None:
    trap, evil = tmp_path / "sprung", tmp_path / "evil.py"
    evil.write_text(TRAP.format(str(trap)))
    own = code(tmp_path, deciding("return None")) if has_own else None
    lead = Lead(JobPolicy(autoscale=f"policy={evil}:Mine"), own)
    (reason,) = await lead.until_ruled()
    assert "cannot be asked" in reason and not lead.ruled[0].act
    assert not trap.exists() and "evil" not in sys.modules


@pytest.mark.usefixtures("quick")
async def test_a_copy_of_another_version_is_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    meant = code(tmp_path, deciding("return None"))
    own = code(tmp_path, TRAP.format(str(trap)))
    (reason,) = await Lead(JobPolicy(autoscale=f"policy={meant.digest}"), own).until_ruled()
    assert meant.digest[:19] in reason and "has another" in reason and "start all workers with the same" in reason
    assert not trap.exists()


@pytest.mark.usefixtures("quick")
async def test_ones_own_copy_is_asked_where_it_is_the_one_that_was_meant(tmp_path: Path) -> None:
    own = code(tmp_path, deciding("return Decision(1, 'just right', numbers={'x': 1})"))
    lead = Lead(JobPolicy(autoscale=f"policy={own.digest},cooldown=0", every=1), own)
    assert await lead.until_ruled() == ["just right"]


@pytest.mark.usefixtures("quick")
async def test_one_that_fails_is_told_of_once_and_not_asked_again(tmp_path: Path) -> None:
    own = code(tmp_path, deciding("raise RuntimeError('no')"))
    lead = Lead(JobPolicy(autoscale=f"policy={own.digest},cooldown=0", every=1), own)
    assert await lead.until_ruled() == ["the job's policy raised RuntimeError('no'): it is not asked any more"]


@pytest.mark.usefixtures("quick")
async def test_one_that_does_not_load_here_is_told_of_once(tmp_path: Path) -> None:
    own = code(tmp_path, "raise KeyError('A_VARIABLE_THAT_ONLY_THE_OTHER_HOST_HAS')")
    (reason,) = await Lead(JobPolicy(autoscale=f"policy={own.digest}"), own).until_ruled()
    assert "A_VARIABLE_THAT_ONLY_THE_OTHER_HOST_HAS" in reason
