"""The checks of `edl doctor`, each shown what is right and what is wrong."""

import socket
import sys
from pathlib import Path

import msgspec
import pytest

from edl.coordination.local_coordinator import LocalChoice
from edl.errors import ConfigError
from edl.launch import doctor
from edl.launch.doctor import Checked, Health


def raising(error: Exception):
    def function(*_, **__):
        raise error

    return function


@pytest.mark.parametrize(
    ("version", "outcome"), [((3, 11, 2), "ok"), ((3, 13, 0), "ok"), ((3, 10, 14), "fail"), ((3, 14, 0), "warn")]
)
def test_a_python_that_was_tried_will_do(version, outcome):
    assert doctor.check_python(version, "/usr/bin/python").outcome == outcome


class TestPackage:
    def test_ours_alone_is_right(self, monkeypatch):
        monkeypatch.setattr("importlib.metadata.distributions", lambda **_: [])
        assert doctor.check_edl_package().outcome is Health.OK

    def test_the_other_distribution_beside_ours_is_named(self, tmp_path, monkeypatch):
        metadata = tmp_path / "edl-0.1.11.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: edl\nVersion: 0.1.11\n")
        monkeypatch.syspath_prepend(tmp_path)
        check = doctor.check_edl_package()
        assert check.outcome is Health.FAIL
        assert "edl 0.1.11" in check.found
        assert "pip uninstall edl" in check.remedy

    def test_the_other_package_in_place_of_ours_is_named(self, monkeypatch):
        monkeypatch.setattr("horovod_edl.foreign_package", lambda: "finds /x/edl. Remedy: `pip uninstall edl`")
        assert doctor.check_edl_package() == Checked("package edl", Health.FAIL, "finds /x/edl.", "`pip uninstall edl`")


class TestHorovod:
    """On packages made of the few files that the check reads."""

    @pytest.fixture
    def site(self, tmp_path, monkeypatch):
        for package in ("torch", "tensorflow", "horovod"):
            (tmp_path / package).mkdir()
            (tmp_path / package / "__init__.py").touch()
        (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.0+cpu'\n")
        monkeypatch.setattr(doctor, "_package_folder", lambda name: self.folder(tmp_path / name))
        return tmp_path

    @staticmethod
    def folder(path: Path):
        return path if path.is_dir() else None

    def build(self, site: Path, **versions: str) -> None:
        (site / "horovod" / "metadata.json").write_bytes(msgspec.json.encode(versions))
        (site / "horovod" / "torch").mkdir()
        (site / "horovod" / "torch" / "mpi_lib_v2.cpython-311.so").write_text("no library")

    def test_a_missing_framework_is_a_warning_only(self, site):
        (site / "torch" / "version.py").unlink()
        (site / "torch" / "__init__.py").unlink()
        (site / "torch").rmdir()
        assert doctor.check_horovod_for("torch").outcome is Health.WARN

    def test_pytorch_has_a_ring_without_horovod(self, site):
        (site / "horovod" / "__init__.py").unlink()
        (site / "horovod").rmdir()
        check = doctor.check_horovod_for("torch")
        assert check.outcome is Health.OK
        assert check.found.startswith("horovod is not installed: `edl run` takes PyTorch's own process groups")
        assert doctor.check_horovod_for("tensorflow").outcome is Health.FAIL

    def test_built_without_the_framework(self, site):
        assert doctor.check_horovod_for("torch").outcome is Health.OK
        check = doctor.check_horovod_for("tensorflow")
        assert (check.outcome, check.found) == (Health.FAIL, "Horovod was built without tensorflow")

    @pytest.mark.parametrize("built", ["2.12.0+cpu", "2.13.0+cu130"])
    def test_built_for_another_version_or_build(self, site, built):
        self.build(site, pytorch=built)
        check = doctor.check_horovod_for("torch")
        assert check.outcome is Health.FAIL
        assert check.found == f"built for torch {built}, but 2.13.0+cpu is installed"
        assert "scripts/setup" in check.remedy

    def test_a_library_that_does_not_load(self, site, monkeypatch):
        self.build(site, pytorch="2.13.0+cpu")
        monkeypatch.setattr(doctor, "PROBE", "import sys; sys.exit('undefined symbol: _ZN')")
        check = doctor.check_horovod_for("torch")
        assert (check.outcome, check.found) == (Health.FAIL, "its library does not load: undefined symbol: _ZN")

    @pytest.mark.parametrize(("printed", "outcome"), [("gloo nccl", "ok"), ("mpi", "fail")])
    def test_gloo_is_what_counts(self, site, monkeypatch, printed, outcome):
        self.build(site, pytorch="2.13.0+cpu")
        monkeypatch.setattr(doctor, "PROBE", f"print('{printed}'); print()")
        assert doctor.check_horovod_for("torch").outcome == outcome

    def test_whether_the_next_ring_forms_beside_training(self, site, monkeypatch):
        self.build(site, pytorch="2.13.0+cpu")
        monkeypatch.setattr(doctor, "PROBE", "print('gloo'); print()")
        assert doctor.check_horovod_for("torch").found == "torch 2.13.0+cpu, gloo; the next ring forms beside training"
        monkeypatch.setattr(doctor, "PROBE", "print('gloo'); print('there is no guard around Horovod')")
        check = doctor.check_horovod_for("torch")
        assert check.outcome is Health.WARN
        assert check.found.endswith("until the next ring is formed: there is no guard around Horovod")
        assert "scripts/setup" in check.remedy
        assert "--ring torch" in check.remedy


class TestCoordinator:
    @pytest.mark.parametrize(
        ("kind", "outcome", "found"),
        [
            ("zookeeper", "ok", "a ZooKeeper of"),
            ("etcd", "ok", "an etcd of"),
            ("embedded", "warn", "the local coordinator is edl's own, for jobs"),
        ],
    )
    def test_which_one_a_job_gets_is_said_and_when_it_needs_another(self, monkeypatch, kind, outcome, found):
        monkeypatch.setattr(doctor, "choose", lambda *_, **__: LocalChoice(kind))
        check = doctor.check_coordinator({})
        assert check.outcome == outcome and check.found.startswith(found)
        assert ("etcd-server" in check.remedy) == (kind == "embedded")

    def test_one_that_is_named_or_cannot_be_had(self, monkeypatch):
        monkeypatch.setattr(doctor, "choose", raising(ConfigError("install a JRE")))
        assert doctor.check_coordinator({"EDL_COORDINATOR": "zk:2181"}).found == "EDL_COORDINATOR=zk:2181"
        check = doctor.check_coordinator({})
        assert (check.outcome, check.remedy) == (Health.FAIL, "install a JRE")

    def test_the_embedded_one_is_for_no_port(self, monkeypatch):
        seen = []
        monkeypatch.setattr(doctor, "choose", lambda *_, alone: seen.append(alone) or LocalChoice("etcd"))
        doctor.check_coordinator({})
        doctor.check_coordinator({"EDL_ZOOKEEPER_PORT": "2181"})
        assert seen == [True, False]

    def test_no_java(self, monkeypatch):
        monkeypatch.setattr(doctor, "find_java", raising(ConfigError("install a JRE")))
        monkeypatch.setattr(doctor, "choose", raising(ConfigError("there is no etcd either")))
        assert doctor.check_java({}) == Checked("Java", Health.FAIL, "none found", "install a JRE")
        monkeypatch.setattr(doctor, "choose", lambda *_, **__: LocalChoice("etcd"))
        assert doctor.check_java({}).outcome is Health.WARN

    def test_no_etcd_matters_where_there_is_no_zookeeper_or_it_is_asked_for(self, monkeypatch):
        monkeypatch.setattr(doctor, "find_etcd", raising(ConfigError("install etcd")))
        monkeypatch.setattr(doctor, "choose", lambda *_, **__: LocalChoice("zookeeper"))
        assert doctor.check_etcd({}).outcome is Health.OK
        assert doctor.check_etcd({"EDL_LOCAL_COORDINATOR": "etcd"}) == Checked(
            "etcd", Health.FAIL, "none found", "install etcd"
        )
        monkeypatch.setattr(doctor, "choose", raising(ConfigError("nothing")))
        assert doctor.check_etcd({}).outcome is Health.FAIL

    def test_the_version_is_read_from_what_etcd_prints(self, monkeypatch, tmp_path):
        etcd = tmp_path / "etcd"
        etcd.write_text("#!/bin/sh\necho etcd Version: 3.4.23\n")
        etcd.chmod(0o755)
        monkeypatch.setattr(doctor, "find_etcd", lambda environ: etcd)
        assert doctor.check_etcd({}) == Checked("etcd", Health.OK, f"3.4.23 ({etcd})")
        etcd.write_text("#!/bin/sh\nexit 1\n")
        assert doctor.check_etcd({}).outcome is Health.WARN

    def test_a_java_that_does_not_run(self, monkeypatch, tmp_path):
        monkeypatch.setattr(doctor, "find_java", lambda environ: str(tmp_path / "java"))
        assert doctor.check_java({}).outcome is Health.FAIL

    def test_the_version_is_read_from_what_java_prints(self, monkeypatch, tmp_path):
        java = tmp_path / "java"
        java.write_text(f"#!{sys.executable}\nimport sys; print('openjdk version \"17.0.15\" 2025', file=sys.stderr)\n")
        java.chmod(0o755)
        monkeypatch.setattr(doctor, "find_java", lambda environ: str(java))
        assert doctor.check_java({}) == Checked("Java", Health.OK, f"17.0.15 ({java})")

    def test_no_jars(self, monkeypatch):
        monkeypatch.setattr(doctor, "find_jars", raising(ConfigError("install libzookeeper-java")))
        assert doctor.check_zookeeper({}).remedy == "install libzookeeper-java"

    def test_the_server_is_named_and_the_rest_counted(self, monkeypatch):
        monkeypatch.setattr(doctor, "find_jars", lambda environ: (Path("/j/zookeeper.jar"), Path("/j/slf4j.jar")))
        assert doctor.check_zookeeper({}).found == "/j/zookeeper.jar and 1 more"

    def test_without_setpriv_all_works_but_less_safely(self, monkeypatch):
        monkeypatch.setattr("shutil.which", lambda name: None)
        assert doctor.check_pdeathsig().outcome is Health.WARN


class TestPorts:
    def test_any_port(self):
        assert doctor.check_ports({}).outcome is Health.OK

    def test_the_port_that_was_asked_for_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            check = doctor.check_ports({"EDL_ZOOKEEPER_PORT": str(port)})
            assert check.outcome is Health.FAIL
            assert f"EDL_ZOOKEEPER_PORT={port}" in check.found

    def test_a_wrong_setting_is_told_and_not_raised(self):
        check = doctor.check_ports({"EDL_ZOOKEEPER_PORT": "99999"})
        assert check.outcome is Health.FAIL
        assert "EDL_ZOOKEEPER_PORT=99999" in check.remedy


@pytest.mark.parametrize(
    ("limits", "outcome", "found"),
    [
        ((256, 256), "warn", "at most 256"),
        ((256, 512), "warn", "at most 512 (256 at first; `edl run` and daemons raise it)"),
        ((256, 4096), "ok", "4096 (256 at first; `edl run` and daemons raise it)"),
        ((1024, 1024), "ok", "1024"),
        ((1024, -1), "ok", "no limit (1024 at first; `edl run` and daemons raise it)"),
    ],
)
def test_open_files(limits, outcome, found):
    check = doctor.check_open_files(limits)
    assert (check.outcome, check.found) == (outcome, found)


class TestHome:
    def test_not_there_yet(self, tmp_path):
        home = tmp_path / "a" / "b"
        assert doctor.check_home({"EDL_HOME": str(home)}) == Checked("EDL_HOME", Health.OK, f"{home}, to be made")
        assert not home.parent.exists()

    def test_ours_alone(self, tmp_path):
        tmp_path.chmod(0o700)
        assert doctor.check_home({"EDL_HOME": str(tmp_path)}).outcome is Health.OK

    def test_open_to_others(self, tmp_path):
        tmp_path.chmod(0o755)
        check = doctor.check_home({"EDL_HOME": str(tmp_path)})
        assert (check.outcome, check.remedy) == (Health.WARN, f"`chmod 700 {tmp_path}`")

    def test_a_file_in_the_way(self, tmp_path):
        (tmp_path / "file").touch()
        assert doctor.check_home({"EDL_HOME": str(tmp_path / "file" / "home")}).outcome is Health.FAIL

    def test_not_writable(self, tmp_path, monkeypatch):
        monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
        assert doctor.check_home({"EDL_HOME": str(tmp_path)}).outcome is Health.FAIL


class TestRun:
    CHECKS = (
        Checked("one", Health.OK, "fine"),
        Checked("two", Health.WARN, "so-so", "mind it"),
        Checked("three", Health.FAIL, "broken", "mend it"),
    )

    def test_one_line_per_check_and_one_per_remedy(self):
        assert doctor.table(self.CHECKS).splitlines() == [
            "ok    one                     fine",
            "warn  two                     so-so",
            "      -> mind it",
            "fail  three                   broken",
            "      -> mend it",
        ]

    @pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 0), (3, 1)])
    def test_only_a_failure_fails(self, monkeypatch, capsys, count, code):
        monkeypatch.setattr(doctor, "look", lambda environ: list(self.CHECKS[:count]))
        assert doctor.run(json=True) == code
        assert msgspec.json.decode(capsys.readouterr().out, type=list[Checked]) == list(self.CHECKS[:count])


def test_the_waits_that_follow_from_the_two_numbers_are_shown():
    check = doctor.check_timeouts({"EDL_SESSION_TIMEOUT": "4", "EDL_STEP_TIMEOUT": "90"})
    assert check.outcome is Health.OK
    for words in (
        "leases 10 s ahead, more when 6 s are left",
        "held 2 s",
        "in doubt 188 s",
        "has 1 s more",
        "ring 180 s",
        "boot 900 s",
    ):
        assert words in check.found


def test_time_outs_that_contradict_each_other_are_refused():
    check = doctor.check_timeouts({"EDL_STEP_TIMEOUT": "3"})
    assert check.outcome is Health.FAIL
    assert "make it 5 or more" in check.remedy
