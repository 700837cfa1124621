"""Settings: keyword or flag, else environment, else default; and one clear line for each wrong one."""

from __future__ import annotations

import os
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest

from edl.config import TABLE, Given, Settings, mistyped, scrubbed
from edl.errors import ConfigError

JOINED = {"EDL_JOB": "mnist", "EDL_COORDINATOR": "zk:2181"}


def test_no_job_is_a_job_of_one_worker():
    settings = Settings.from_environment({})
    assert settings.job is None
    assert (settings.np, settings.min_workers, settings.max_workers) == (1, 1, None)
    assert (settings.session_timeout_s, settings.step_timeout_s) == (10, 60)
    assert settings.home == Path("~/.edl").expanduser()


def test_a_keyword_wins_over_the_environment():
    settings = Settings.from_environment({**JOINED, "EDL_BATCH_SIZE": "32"}, job="other", batch_size=64, np=None)
    assert (settings.job, settings.batch_size, settings.np) == ("other", 64, 1)


@pytest.mark.parametrize("variable", ["EDL_MIN_WORKERS", "EDL_MIN_NP", "EDL_MIN_NUM_PROC"])
def test_every_spelling_of_a_variable_counts(variable):
    settings = Settings.from_environment({variable: "3"})
    assert (settings.min_workers, settings.np) == (3, 3)


def test_two_spellings_that_differ_are_refused():
    with pytest.raises(ConfigError, match="EDL_NP=2 and EDL_NUM_PROC=3 contradict each other"):
        Settings.from_environment({"EDL_NP": "2", "EDL_NUM_PROC": "3"})


@pytest.mark.parametrize(
    ("name", "meant"), [("EDL_NPP", "EDL_NP"), ("EDL_MAXNP", "EDL_MAX_NP"), ("EDL_JOBS", "EDL_JOB")]
)
def test_a_mistyped_variable_is_told_with_what_was_meant(name, meant):
    assert mistyped({name: "2", "EDL_NP": "2", "EDL_JSON": "1", "NPP": "1"}, {"EDL_JSON"}) == [
        f"{name} is no variable of edl: did you mean {meant}?"
    ]


@pytest.mark.parametrize("name", ["EDL_DATA", "EDL_X", "EDL_MODEL_FOLDER", "EDL_TEST_COORDINATOR"])
def test_a_variable_of_a_script_is_no_mistyped_one(name):
    assert mistyped({name: "2"}, ()) == []


def test_an_empty_variable_counts_as_none_and_one_of_another_command_is_known():
    assert mistyped({"EDL_NPP": ""}, ()) == mistyped({"EDL_NPP": "2"}, {"EDL_NPP"}) == []


@pytest.mark.parametrize(
    ("environ", "keywords", "words"),
    [
        ({"EDL_NP": "0"}, {}, "EDL_NP=0: must be a whole number of at least 1"),
        ({"EDL_RING": "nccl"}, {}, "EDL_RING=nccl: must be auto, horovod or torch"),
        ({"EDL_NP": "two"}, {}, "EDL_NP=two: must be a whole number"),
        ({}, {"batch_size": -1}, "batch_size=-1: must be a whole number of at least 1"),
        ({}, {"batch_size": 6.5}, "batch_size=6.5: must be a whole number"),
        ({}, {"job": "a b"}, "job='a b': must be 1 to 64 letters"),
        ({"EDL_JOB": ".."}, {}, "EDL_JOB=..: must be"),
        ({"EDL_COORDINATOR": "zk"}, {}, "EDL_COORDINATOR=zk: must be HOST:PORT"),
        ({"EDL_COORDINATOR": "zk:70000"}, {}, "EDL_COORDINATOR=zk:70000: must be HOST:PORT"),
        ({"EDL_COORDINATOR": "zk:1/a//b"}, {}, "empty part"),
        ({"EDL_SESSION_TIMEOUT": "nan"}, {}, "EDL_SESSION_TIMEOUT=nan: must be a number of seconds from 1 to 60"),
        ({"EDL_STEP_TIMEOUT": "0"}, {}, "EDL_STEP_TIMEOUT=0: must be a number of seconds"),
        *(
            ({"EDL_SPIN_MS": given}, {}, f"EDL_SPIN_MS={given}: must be a number of milliseconds from 0 to 10000")
            for given in ("long", "-1", "nan", "inf", "60000")
        ),
        ({"EDL_STEP_TIMEOUT": "4"}, {}, "EDL_STEP_TIMEOUT=4 is less than half of the default --session-timeout of 10"),
        (
            {"EDL_STEP_TIMEOUT": "9", "EDL_SESSION_TIMEOUT": "20"},
            {},
            "EDL_STEP_TIMEOUT=9 is less than half of EDL_SESSION_TIMEOUT=20.* make it 10 or more",
        ),
        ({"EDL_NETWORK_INTERFACE": "nope0"}, {}, "EDL_NETWORK_INTERFACE=nope0: is no network interface .* it has .*lo"),
        ({"EDL_MIN_NP": "3", "EDL_MAX_NP": "2"}, {}, "EDL_MIN_NP=3 is more than EDL_MAX_NP=2"),
        ({"EDL_MIN_NP": "3", "EDL_NP": "2"}, {}, "EDL_NP=2 is less than EDL_MIN_NP=3"),
        ({"EDL_MAX_NP": "3", "EDL_NP": "4"}, {}, "EDL_NP=4 is more than EDL_MAX_NP=3"),
        ({"EDL_VIRTUAL_WORKERS": "300"}, {}, "EDL_VIRTUAL_WORKERS=300 is more than 256"),
        ({"EDL_VIRTUAL_WORKERS": "2", "EDL_NP": "4"}, {}, "EDL_NP=4 is more than EDL_VIRTUAL_WORKERS=2"),
        ({"EDL_COORDINATOR": "zk:1"}, {}, "EDL_COORDINATOR=zk:1 is given without a job"),
        ({}, {"colour": 1}, "colour is no setting"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_the_remedy(environ, keywords, words, tmp_path):
    with pytest.raises(ConfigError, match=words) as caught:
        Settings.from_environment({"EDL_HOME": str(tmp_path), **environ}, **keywords)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["zk:1", "a:1,b:2", "10.0.0.1:2181/edl/jobs", "[::1]:2181"])
def test_coordinators_of_all_forms(address):
    assert Settings.from_environment({"EDL_JOB": "x", "EDL_COORDINATOR": address}).coordinator == address


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"checkpoint_every": "often"},
            "must be a number of seconds, at least 1, or of steps: 30s or 500steps; or auto",
        ),
        ({"checkpoint_overhead": "1"}, "must be a percentage from 0.01% to 100%, such as 1%"),
        ({"checkpoint_overhead": "0%"}, "must be a percentage from 0.01% to 100%, such as 1%"),
        (
            {"checkpoint_overhead": "2%", "checkpoint_every": "30s"},
            "checkpoint_every='30s' says how often in any case; leave one of them away",
        ),
    ],
)
def test_what_is_wrong_about_the_interval_is_told_in_one_line(given, words):
    with pytest.raises(ConfigError) as caught:
        Settings.from_environment({}, job="j", checkpoint="/c", **given)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_an_overhead_is_handed_down_only_where_the_job_chooses():
    settings = Settings.from_environment({}, job="j", checkpoint="/c", checkpoint_every="30s")
    assert Settings.from_environment(settings.to_environment()) == settings
    with pytest.raises(ConfigError, match="EDL_CHECKPOINT_OVERHEAD=2%: the job has no folder for checkpoints"):
        Settings.from_environment({"EDL_CHECKPOINT_OVERHEAD": "2%"}, job="j")


def test_the_environment_hands_all_settings_down(tmp_path):
    given = {
        "job": "mnist", "coordinator": "zk:1/x", "secret_file": tmp_path / "s", "np": 2, "min_workers": 1,
        "max_workers": 4, "max_restarts": 3, "batch_size": 64, "session_timeout_s": 4.5, "step_timeout_s": 30,
        "network_interface": "lo", "zookeeper_port": 2181, "output_filename": tmp_path / "out", "home": tmp_path,
        "audit": tmp_path / "audit", "autoscale": "efficiency=0.1", "autoscale_every": 10, "stragglers": "tell",
        "batch_policy": "fixed-local,most=64", "keep_nodes_s": 60, "metrics_port": 9400, "metrics_address": "127.0.0.1",
        "check_weights": 50, "on_divergence": "heal", "ring": "torch",
        "spin_ms": 2.5, "slot": 0, "worker_id": "w1", "stand_in": tmp_path / "stand-in",
        "policy_file": tmp_path / "policy.py", "local_coordinator": "etcd", "driver_slot": "localhost:1",
        "checkpoint": "memory://x", "checkpoint_every": "auto", "checkpoint_overhead": "2.5%",
        "keep_checkpoints": 3, "resume": "must",
        "tensorboard": tmp_path / "board", "resume_from": "/x/y/0001-000001-000000000001", "life": 2,
        "log_level": "debug", "warm_starts": "eager", "virtual_workers": 4, "verify_compute": "1%", "replay_until": 9,
        "processes": 1, "limb": 0, "meeting": tmp_path / "meeting",
    }  # fmt: skip
    known = {setting.field: setting.variables[0] for setting in TABLE if setting.field != "config"}
    assert set(given) == set(known), "a setting that this test does not know"
    settings = Settings.from_environment({}, **given)
    environ = settings.to_environment()
    assert Settings.from_environment(environ) == settings
    assert set(environ) == set(known.values())


def test_a_job_that_is_not_saved_hands_down_what_its_children_take():
    settings = Settings.from_environment({}, job="mnist", coordinator="zk:2181")
    assert Settings.from_environment(settings.to_environment()) == settings


def test_a_scrubbed_environment_has_no_setting_in_any_spelling():
    environ = {
        "EDL_MIN_NP": "1",
        "EDL_NUM_PROC": "2",
        "EDL_COORDINATOR_AUTH": "a:b",
        "EDL_JAVA": "java",
        "PATH": "/bin",
    }
    assert scrubbed(environ, credentials=False).keys() == {"EDL_COORDINATOR_AUTH", "EDL_JAVA", "PATH"}
    assert scrubbed(environ, credentials=True).keys() == {"EDL_JAVA", "PATH"}


def test_a_flag_is_quoted_as_it_was_typed():
    with pytest.raises(ConfigError, match=r"^--num-proc 0: must be"):
        Settings.from_given({"np": Given("0", "--num-proc 0")}, {"EDL_NP": "3"})


def secret_file(folder: Path) -> Path:
    file = folder / "secret"
    file.touch(mode=0o600)
    file.write_text("abc\n")
    return file


class TestSecret:
    def test_is_read_from_its_file(self, tmp_path):
        assert Settings(secret_file=secret_file(tmp_path)).secret() == b"abc"

    @pytest.mark.parametrize("mode", [0o604, 0o620, 0o602, 0o666])
    def test_a_file_that_others_can_read_is_refused(self, tmp_path, mode):
        file = secret_file(tmp_path)
        file.chmod(mode)
        with pytest.raises(ConfigError, match=rf"can be read by others \(mode 0{mode:o}\).*chmod 600 .*secret"):
            Settings(secret_file=file).secret()

    @pytest.mark.parametrize(("owner", "is_open"), [(0, False), (1000, True)])
    def test_a_group_may_read_what_root_has_mounted_for_it(self, tmp_path, monkeypatch, owner, is_open):
        status = os.stat_result((stat.S_IFREG | 0o440, 0, 0, 1, owner, 1000, 0, 0, 0, 0))
        monkeypatch.setattr(os, "fstat", lambda _: status)
        with pytest.raises(ConfigError, match="can be read by others") if is_open else nullcontext():
            assert Settings(secret_file=secret_file(tmp_path)).secret() == b"abc"

    def test_none_is_empty(self):
        assert Settings().secret() == b""

    def test_a_file_that_is_not_there_or_empty_is_named(self, tmp_path):
        with pytest.raises(
            ConfigError, match=r"secret's file .*none \(--secret-file or EDL_SECRET_FILE\) cannot be read: No such file"
        ):
            Settings(secret_file=tmp_path / "none").secret()
        (tmp_path / "none").touch(mode=0o600)
        with pytest.raises(ConfigError, match=r"is empty"):
            Settings(secret_file=tmp_path / "none").secret()


def test_a_job_that_is_not_saved_hands_nothing_down_of_checkpoints():
    environ = Settings.from_environment({}).to_environment()
    assert not {"EDL_CHECKPOINT_EVERY", "EDL_KEEP", "EDL_RESUME"} & environ.keys()
    assert Settings.from_environment(environ) == Settings.from_environment({})


def of_several(**given: str) -> Settings:
    return Settings.from_given({field: Given(text, f"--{field} {text}") for field, text in given.items()}, {})


def test_workers_of_several_processes_train_on_torch_s_ring() -> None:
    assert of_several(processes="2").ring == "torch"
    assert of_several(processes="1").ring == "auto"


@pytest.mark.parametrize(
    "more",
    [
        {"ring": "horovod"},
        {"virtual_workers": "4"},
        {"on_divergence": "heal"},
        {"processes": "9"},
    ],
)
def test_what_workers_of_several_processes_cannot_do_is_refused_in_one_line(more: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="processes") as refused:
        of_several(**{"processes": "2", **more})
    assert "\n" not in str(refused.value)
