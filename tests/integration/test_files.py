"""Jobs whose samples are the records of files."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "jobs" / "torch_files.py"
FILES, RECORDS = 3, 61


def write_files(folder: Path) -> None:
    folder.mkdir()
    for file in range(FILES):
        lines = (json.dumps({"n": file * RECORDS + record, "text": "ü" * record}) + "\n" for record in range(RECORDS))
        (folder / f"{file}.jsonl").write_text("".join(lines))


def train(edl, files: str, out: Path):
    return edl("run", "-np", "2", "--job", "x", *edl.warm.command(SCRIPT), files, str(out), timeout_s=200)


def test_each_record_of_each_epoch_is_trained_once(edl, tmp_path):
    write_files(tmp_path / "files")
    done = train(edl, f"{tmp_path}/files/*.jsonl", tmp_path)
    assert done.returncode == 0, done.stderr
    shares = [json.loads((tmp_path / f"trained-{rank}.json").read_text()) for rank in range(2)]
    assert {len(share) for share in shares} == {2 * 12}  # 183 records in steps of 16; no worker's share is ever empty
    assert Counter(chain(*chain(*shares))) == Counter(dict.fromkeys(range(FILES * RECORDS), 2))
    status = edl.json("status", "x")
    assert status["data"]["total"] == status["data"]["trained"] == FILES * RECORDS
    assert status["spec"]["source"].startswith("jsonl:3:")


def test_a_bad_record_ends_the_job_and_is_named(edl, tmp_path):
    write_files(tmp_path / "files")
    bad = tmp_path / "files" / "1.jsonl"
    bad.write_text(bad.read_text().replace('"n": 70,', '"n": ,'))
    done = train(edl, f"{tmp_path}/files", tmp_path)
    assert done.returncode == 1
    named = f"{bad} on host"
    assert f"DataError: {named}" in done.stderr  # each worker's traceback
    reason = edl.json("status", "x")["reason"]
    assert named in reason
    assert "is corrupt at byte 414 (sample 70): no JSON" in reason
    assert done.stderr.splitlines()[-1].startswith(f"edl: job x failed: {reason}")
