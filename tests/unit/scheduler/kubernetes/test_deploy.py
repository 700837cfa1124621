"""What is shipped for a Kubernetes: its tools accept it, and it is what `edl cluster manifests` writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from edl.cli import main
from edl.scheduler.kubernetes.kubernetes_choice import template_of
from edl.scheduler.kubernetes.manifests import ManifestsWanted, manifests, worker_template

DEPLOY = Path(__file__).parents[4] / "deploy"
BASE = DEPLOY / "kubernetes"
IMAGES = ("--image", "registry.example.org/edl:1", "--etcd-image", "registry.example.org/etcd:3.5")
VERSIONS = ("1.31", "1.37")  # of Kubernetes


def test_the_base_is_what_the_command_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "manifests", *IMAGES, "--kustomize", str(tmp_path / "base")]) == 0
    assert f"kubectl apply -k {tmp_path / 'base'}" in capsys.readouterr().out
    written = {path.name: path.read_text() for path in (tmp_path / "base").iterdir()}
    assert written == {path.name: path.read_text() for path in BASE.iterdir()}
    (tmp_path / "file").touch()
    assert main(["cluster", "manifests", *IMAGES, "--kustomize", str(tmp_path / "file")]) == 2
    assert "file: File exists" in capsys.readouterr().err


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("coordinator", ["", "zk1:2181"])
def test_all_of_it_keeps_to_the_schemas_of_kubernetes(version: str, coordinator: str) -> None:
    wanted = ManifestsWanted("edl", "edl:1", coordinator, "etcd:3.5", gpu="nvidia.com/gpu", storage_class="fast")
    for one in (*manifests(wanted), worker_template(wanted)):
        kubernetes_validate.validate(one, version, strict=True)
    wrong = worker_template(wanted)
    wrong["spec"]["conatiners"] = wrong["spec"].pop("containers")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_kustomize_builds_the_base_and_an_overlay_that_replaces_image_and_worker(tmp_path: Path) -> None:
    if not (kubectl := shutil.which("kubectl")):
        pytest.skip("there is no kubectl")

    def built(folder: Path) -> list[dict]:
        line = [kubectl, "kustomize", "--load-restrictor", "LoadRestrictionsNone", str(folder)]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        return list(yaml.safe_load_all(done.stdout))

    for one in built(BASE):
        kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
    shutil.copytree(BASE, tmp_path / "base")
    overlay = tmp_path / "ours"
    overlay.mkdir()
    (overlay / "worker.yaml").write_text((BASE / "worker.yaml").read_text().replace("edl:1", "ours:2"))
    images = [{"name": "registry.example.org/edl", "newName": "registry.example.org/ours", "newTag": "2"}]
    ours = {
        "resources": ["../base"], "namespace": "edl", "images": images,
        "configMapGenerator": [{"name": "edl-worker", "behavior": "replace", "files": ["worker.yaml"]}],
    }  # fmt: skip
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(ours))
    of_kind = {one["kind"]: one for one in built(overlay)}
    pod = of_kind["Deployment"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example.org/ours:2"
    config = of_kind["ConfigMap"]
    [volume] = [one["configMap"]["name"] for one in pod["volumes"] if one["name"] == "worker"]
    assert volume == config["metadata"]["name"] != "edl-worker"  # a change of the template starts schedulers anew
    (tmp_path / "worker.yaml").write_text(config["data"]["worker.yaml"])
    assert template_of(str(tmp_path / "worker.yaml"))["spec"]["containers"][0]["image"].endswith("ours:2")


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_what_is_copied_and_the_extras_that_there_are() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    [copied] = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY pyproject")]
    assert all((DEPLOY.parent / name).is_file() for name in copied)
    extras = text.partition("${wheel}[")[2].partition("]")[0].split(",")
    declared = (DEPLOY.parent / "pyproject.toml").read_text()
    assert extras and all(f"\n{name} = [" in declared for name in extras)
