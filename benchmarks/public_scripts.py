"""Training scripts of other projects, with the lines changed that edl's pages tell, while workers come, die and go.

    python -m benchmarks.public_scripts CLONES [--scripts NAME...] [--ring RING]

CLONES: a folder with clones of the projects' repositories, each at OWNER/NAME (`pytorch/examples`, `karpathy/nanoGPT`,
...); a script whose clone is not there is left out, and told so. Their data is made up here, in the form in which the
scripts read it; models and epochs are small enough for two cores. `torchvision` is needed for the images, `datasets`
for one script.

Each script runs as `edl run -np 2 --max-np 3 --max-restarts 0 --check-weights 1 --audit`; a third worker is asked for
(`edl scale`); once it trains, it or another one is killed by `kill -9`; two go on to the end. A run is good if the job
ends with 0, had the sizes 2, 3 and 2, compared the workers' weights and never found them different, and `edl data
verify` finds no sample lost or repeated. A script that edl refuses counts as refused if that is said before its first
step, and the line is printed. Exit code 1 if a script is neither good nor refused.
"""

# ruff: noqa: E501 - lines of the scripts, and what comes in their places

from __future__ import annotations

import argparse
import contextlib
import difflib
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

JOB: Final = "theirs"
PATIENCE_S, END_S = 300.0, 900.0
Lines = tuple[tuple[str, str], ...]  # what stands in the script, and what comes in its place


class Script(NamedTuple):
    """One of another project's."""

    name: str
    clone: str  # OWNER/NAME
    path: str
    lines: Lines  # as edl's pages tell
    arguments: tuple[str, ...] = ()
    here: Lines = ()  # for this machine, whatever trains: sizes, a CPU, newer libraries
    beside: tuple[str, ...] = ()  # files of the clone that it imports
    data: Callable[[Path], None] = lambda _folder: None


# ------------------------------------------------------------------------------------------------------ made-up data


def mnist(folder: Path, train: int = 12_000, test: int = 500) -> None:
    """Images of noise in MNIST's own files, where torchvision and the scripts look for them."""
    rng = np.random.default_rng(0)
    for place in ("data", "../data"):
        raw = (folder / place / "MNIST" / "raw").resolve()
        raw.mkdir(parents=True, exist_ok=True)
        for kind, count in (("train", train), ("t10k", test)):
            images = rng.integers(0, 256, (count, 28, 28), np.uint8)
            labels = rng.integers(0, 10, count, np.uint8)
            for name, magic, rows in (("images-idx3", 2051, images), ("labels-idx1", 2049, labels)):
                head = np.array([magic, *rows.shape], ">u4").tobytes()
                (raw / f"{kind}-{name}-ubyte").write_bytes(head + rows.tobytes())
                with gzip.open(raw / f"{kind}-{name}-ubyte.gz", "wb", 1) as packed:
                    packed.write(head)


def lightning_mnist(folder: Path) -> None:
    """As many as the script splits into two, in torchvision's files."""
    mnist(folder, 60_000, 200)
    datasets = folder.parent.parent / "Datasets"
    if not datasets.exists():
        datasets.symlink_to((folder / "data").resolve())


def faces(folder: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    (folder / "celeba_gan").mkdir()
    for number in range(1600):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(folder / "celeba_gan" / f"{number:05}.png")


def shakespeare(folder: Path) -> None:
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", 100_000), ("val", 4_000)):
        rng.integers(0, 65, count, np.uint16).tofile(data / f"{name}.bin")


def words(folder: Path) -> None:
    data = folder / "data" / "wikitext-2"
    data.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", 6000), ("valid", 200), ("test", 200)):
        lines = (" ".join(f"w{word}" for word in rng.integers(0, 200, 12)) for _ in range(count))
        (data / f"{name}.txt").write_text("\n".join(lines))


def sentences(folder: Path) -> None:
    """Two CSV files, and a tiny BERT that was never trained."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    rng = np.random.default_rng(0)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(50))]
    (folder / "bert").mkdir()
    (folder / "bert" / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab_file=str(folder / "bert" / "vocab.txt")).save_pretrained(folder / "bert")
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    BertForSequenceClassification(config).save_pretrained(folder / "bert")
    for name, count in (("train", 12_000), ("valid", 120)):
        rows = (" ".join(f"w{word}" for word in rng.integers(0, 50, 8)) + f",{rng.integers(2)}" for _ in range(count))
        (folder / f"{name}.csv").write_text("\n".join(["sentence1,label", *rows]))


# ------------------------------------------------------------------------------------------------------- the scripts

IMPORT_TORCH: Final = ("import torch\n", "import torch\nimport edl.torch as edl\n")
ACCURACY: Final = """
class Accuracy:
    def __init__(self):
        self.right = self.all = 0

    def add_batch(self, predictions, references):
        self.right, self.all = self.right + int((predictions == references).sum()), self.all + len(references)

    def compute(self):
        return {"accuracy": self.right / self.all}


load_metric = lambda name: Accuracy()
"""

SCRIPTS: Final = (
    Script(
        "ddp_tutorial",
        "pytorch/examples",
        "distributed/ddp-tutorial-series/multigpu_torchrun.py",
        (
            IMPORT_TORCH,
            ('init_process_group(backend="nccl")', "edl.init()"),
            (
                "self.model = DDP(self.model, device_ids=[self.gpu_id])",
                "self.model, self.optimizer, self.train_data = edl.prepare(self.model, optimizer, train_data)",
            ),
            ("self.train_data.sampler.set_epoch(epoch)\n", "self.train_data.set_epoch(epoch)\n"),
            ("self.model.module.state_dict()", "self.model.state_dict()"),
            ("for epoch in range(self.epochs_run, max_epochs)", "for epoch in self.train_data.epochs(max_epochs)"),
            ("shuffle=False,\n        sampler=DistributedSampler(dataset)", "shuffle=True,"),
            ("    destroy_process_group()\n", ""),
        ),
        ("60", "10", "--batch_size", "8"),
        (
            ('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', ""),
            ('int(os.environ["LOCAL_RANK"])', '"cpu"'),
            ('f"cuda:{self.gpu_id}"', '"cpu"'),
            ("self.gpu_id == 0", "edl.rank() == 0"),
            (
                "self._run_batch(source, targets)\n",
                "self._run_batch(source, targets)\n            __import__('time').sleep(0.01)\n",
            ),
        ),
        ("distributed/ddp-tutorial-series/datautils.py",),
    ),
    Script(
        "mnist",
        "pytorch/examples",
        "mnist/main.py",
        (
            IMPORT_TORCH,
            (
                "    for epoch in range(1, args.epochs + 1):",
                (
                    "    model, optimizer, train_loader = edl.prepare(model, optimizer, train_loader)\n"
                    "    edl.register(scheduler=scheduler)\n"
                    "    for epoch in train_loader.epochs(args.epochs):"
                ),
            ),
        ),
        ("--epochs", "3", "--batch-size", "16", "--no-accel"),
        data=lambda folder: mnist(folder, 6_000, 200),
    ),
    Script(
        "mnist_dry_run",
        "pytorch/examples",
        "mnist/main.py",
        (
            IMPORT_TORCH,
            (
                "    for epoch in range(1, args.epochs + 1):",
                (
                    "    model, optimizer, train_loader = edl.prepare(model, optimizer, train_loader)\n"
                    "    edl.register(scheduler=scheduler)\n"
                    "    for epoch in train_loader.epochs(args.epochs):"
                ),
            ),
        ),
        ("--epochs", "2", "--batch-size", "64", "--no-accel", "--dry-run"),
        data=lambda folder: mnist(folder, 12_000, 100),
    ),
    Script(
        "imagenet_dummy",
        "pytorch/examples",
        "imagenet/main.py",
        (
            IMPORT_TORCH,
            (
                "    for epoch in range(args.start_epoch, args.epochs):",
                (
                    "    model, optimizer, train_loader = edl.prepare(model, optimizer, train_loader)\n"
                    "    edl.register(scheduler=scheduler)\n"
                    "    for epoch in train_loader.epochs(args.epochs):"
                ),
            ),
        ),
        ("--dummy", "-a", "resnet18", "-b", "2", "-j", "0", "--epochs", "2", "--no-accel", "--lr", "0.001"),
        (("1281167, (3, 224, 224)", "120, (3, 64, 64)"), ("50000, (3, 224, 224)", "8, (3, 64, 64)")),
    ),
    Script(
        "nanogpt",
        "karpathy/nanoGPT",
        "train.py",
        (
            IMPORT_TORCH,
            ("# various inits, derived attributes, I/O setup\n", "edl.init()\n"),
            ("master_process = True\n", "master_process = edl.rank() == 0\n"),
            ("def get_batch(split):", "def get_batch(split, ix=None):"),
            (
                "    ix = torch.randint(len(data) - block_size, (batch_size,))\n",
                "    ix = torch.randint(len(data) - block_size, (batch_size,)) if ix is None else ix\n",
            ),
            (
                "# compile the model\n",
                (
                    "optimizer = edl.Optimizer(optimizer, model=model)\nedl.register(scaler=scaler)\n"
                    "length = len(np.memmap(os.path.join(data_dir, 'train.bin'), dtype=np.uint16, mode='r')) - block_size\n"
                    "samples = edl.elastic_shard_generator(length, epochs=1, shuffle=True)\n\n# compile the model\n"
                ),
            ),
            ("X, Y = get_batch('train') # fetch the very first batch\n", ""),
            (
                "while True:\n",
                "for ids in samples.batches(batch_size * gradient_accumulation_steps):\n    iter_num = edl.step() - 1\n",
            ),
            (
                "    for micro_step in range(gradient_accumulation_steps):\n",
                (
                    "    parts = [part for part in np.array_split(ids, gradient_accumulation_steps) if len(part)]\n"
                    "    for micro_step, part in enumerate(parts):\n        X, Y = get_batch('train', part)\n"
                ),
            ),
            ("loss = loss / gradient_accumulation_steps #", "loss = loss * (len(part) / len(ids)) #"),
            ("        X, Y = get_batch('train')\n", ""),
            (
                "        scaler.scale(loss).backward()\n",
                (
                    "        with optimizer.no_sync() if micro_step < len(parts) - 1 else nullcontext():\n"
                    "            scaler.scale(loss).backward()\n"
                ),
            ),
            ("    iter_num += 1\n", "    edl.notify_batch_end()\n"),
        ),
        (
            "--dataset=shakespeare_char",
            "--device=cpu",
            "--compile=False",
            "--eval_iters=2",
            "--log_interval=20",
            "--block_size=32",
            "--batch_size=8",
            "--n_layer=2",
            "--n_head=2",
            "--n_embd=32",
            "--max_iters=100000",
            "--lr_decay_iters=1000",
            "--dropout=0.1",
            "--gradient_accumulation_steps=2",
            "--eval_interval=100",
            "--dtype=float32",
            "--warmup_iters=100",
        ),
        here=(("meta_vocab_size = None\n", "meta_vocab_size = 65\n"),),
        beside=("model.py", "configurator.py"),
        data=shakespeare,
    ),
    Script(
        "dcgan",
        "pytorch/examples",
        "dcgan/main.py",
        (
            IMPORT_TORCH,
            (
                "dataloader = torch.utils.data.DataLoader(dataset, batch_size=opt.batchSize,",
                "edl.init()\ndataloader = edl.ElasticDataLoader(dataset, batch_size=opt.batchSize,",
            ),
            (
                "if opt.dry_run:\n    opt.niter = 1\n",
                (
                    "optimizerD = edl.Optimizer(optimizerD, model=netD)\noptimizerG = edl.Optimizer(optimizerG, model=netG)\n"
                    "if opt.dry_run:\n    opt.niter = 1\n"
                ),
            ),
            (
                "for epoch in range(opt.niter):\n",
                "while dataloader.shards.epochs_done < opt.niter:\n    epoch = dataloader.shards.epochs_done\n",
            ),
            ("        if opt.dry_run:\n", "        edl.notify_batch_end()\n        if opt.dry_run:\n"),
        ),
        (
            "--dataset",
            "fake",
            "--batchSize",
            "2",
            "--ngf",
            "4",
            "--ndf",
            "4",
            "--niter",
            "8",
            "--workers",
            "0",
            "--manualSeed",
            "1",
        ),
    ),
    Script(
        "keras_gan",
        "keras-team/keras-io",
        "examples/generative/dcgan_overriding_train_step.py",
        (
            ("import tensorflow as tf\n", "import tensorflow as tf\nimport edl.tensorflow as edl\n"),
            ("callbacks=[GANMonitor(", "callbacks=[edl.KerasCallback(), GANMonitor("),
            (
                "dataset = dataset.map(lambda x: x / 255.0)\n",
                "images = np.concatenate([x / 255.0 for x in dataset])\nedl.init()\ndataset = edl.elastic_dataset(images, 4, shuffle=True)\n",
            ),
        ),
        here=(
            (
                "import matplotlib.pyplot as plt\nimport os\nimport gdown\nfrom zipfile import ZipFile\n",
                "import numpy as np\n",
            ),
            ("epochs = 1 ", "epochs = 8 "),
            ('os.makedirs("celeba_gan")\n', ""),
            ("gdown.download(url, output, quiet=True)\n", ""),
            ('with ZipFile("celeba_gan/data.zip", "r") as zipobj:\n    zipobj.extractall("celeba_gan")\n', ""),
            (
                'for x in dataset:\n    plt.axis("off")\n    plt.imshow((x.numpy() * 255).astype("int32")[0])\n    break\n',
                "",
            ),
            ("layers.Conv2D(64,", "layers.Conv2D(8,"),
            ("layers.Conv2D(128,", "layers.Conv2D(8,"),
            ("layers.Conv2DTranspose(128,", "layers.Conv2DTranspose(8,"),
            ("layers.Conv2DTranspose(256,", "layers.Conv2DTranspose(8,"),
            ("layers.Conv2DTranspose(512,", "layers.Conv2DTranspose(8,"),
        ),
        data=faces,
    ),
    Script(
        "glue_no_trainer",
        "huggingface/transformers",
        "examples/pytorch/text-classification/run_glue_no_trainer.py",
        (
            ("from accelerate import Accelerator\n", "from edl.accelerate import Accelerator\n"),
            (
                "for epoch in range(args.num_train_epochs):",
                "for epoch in train_dataloader.epochs(args.num_train_epochs):",
            ),
        ),
        (
            "--train_file",
            "train.csv",
            "--validation_file",
            "valid.csv",
            "--model_name_or_path",
            "bert",
            "--num_train_epochs",
            "2",
            "--per_device_train_batch_size",
            "4",
            "--seed",
            "1",
        ),
        (
            ("from datasets import load_dataset, load_metric\n", f"from datasets import load_dataset\n{ACCURACY}\n"),
            ("    AdamW,\n", ""),
            ("optimizer = AdamW(", "optimizer = __import__('torch').optim.AdamW("),
            ("accelerator.use_fp16", "accelerator.mixed_precision == 'fp16'"),
            ('        from_tf=bool(".ckpt" in args.model_name_or_path),\n', ""),
        ),
        data=sentences,
    ),
    Script(
        "horovod_elastic_mnist",
        "horovod/horovod",
        "examples/elastic/pytorch/pytorch_mnist_elastic.py",
        (("import horovod.torch as hvd\n", "import edl.torch as hvd\n"),),
        ("--epochs", "3", "--batch-size", "16", "--no-cuda"),
        (("size_average=False", "reduction='sum'"),),
        data=lambda folder: mnist(folder, 6_000, 100),
    ),
    Script(
        "lightning_autoencoder",
        "Lightning-AI/pytorch-lightning",
        "examples/pytorch/basics/autoencoder.py",
        (
            ("import torch\n", "import torch\nimport edl.lightning\n"),
            ('trainer_defaults={"callbacks"', 'trainer_defaults={"strategy": "edl", "callbacks"'),
        ),
        ("--trainer.max_epochs=1", "--trainer.enable_progress_bar=false"),
        (
            ("from lightning.pytorch.demos.mnist_datamodule import MNIST\n", ""),
            ("    import torchvision\n", "    import torchvision\n    from torchvision.datasets import MNIST\n"),
        ),
        data=lightning_mnist,
    ),
    Script(
        "word_language_model",
        "pytorch/examples",
        "word_language_model/main.py",
        (
            IMPORT_TORCH,
            (
                "    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)\n",
                (
                    "    edl.init()\n    args.save += f'.{os.getpid()}'\n"
                    "    optimizer = edl.Optimizer(torch.optim.AdamW(model.parameters(), lr=args.lr), model=model)\n"
                    "    chunks = edl.elastic_shard_generator(-(-(train_data.size(0) - 1) // args.bptt))\n"
                ),
            ),
            (
                (
                    "    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):\n"
                    "        data, targets = get_batch(train_data, i)\n"
                ),
                (
                    "    for batch, ids in enumerate(chunks.batches(1)):\n"
                    "        data, targets = get_batch(train_data, int(ids[0]) * args.bptt)\n"
                ),
            ),
            (
                "        total_loss += loss.item()\n",
                "        edl.notify_batch_end()\n        total_loss += loss.item()\n",
            ),
            (
                "    for epoch in range(1, args.epochs+1):\n",
                "    while chunks.epochs_done < args.epochs:\n        epoch = chunks.epochs_done + 1\n",
            ),
        ),
        (
            "--model",
            "Transformer",
            "--use-optimizer",
            "--lr",
            "0.001",
            "--emsize",
            "16",
            "--nhid",
            "16",
            "--nlayers",
            "1",
            "--nhead",
            "2",
            "--epochs",
            "2",
            "--batch_size",
            "4",
            "--bptt",
            "16",
        ),
        beside=("word_language_model/data.py", "word_language_model/model.py"),
        data=words,
    ),
)


def changed(text: str, lines: Iterable[tuple[str, str]]) -> str:
    """Raises ValueError where something that is to be changed is not there."""
    for old, new in lines:
        if old not in text:
            raise ValueError(f"the script has no {old!r}: it is of another version")
        text = text.replace(old, new)
    return text


def difference(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[0] in "+-" and line[:3] not in {"+++", "---"}]


# ---------------------------------------------------------------------------------------------------------- the jobs


class Trial:
    """One script, in a folder of its own."""

    def __init__(self, script: Script, text: str, clones: Path, folder: Path, ring: str | None) -> None:
        self.script, self.folder, self._ring = script, folder / "work" / "a" / "b", ring
        self.folder.mkdir(parents=True)
        self._path = self.folder / Path(script.path).name
        self._path.write_text(text)
        for name in script.beside:
            (self.folder / Path(name).name).write_text((clones / script.clone / name).read_text())
        script.data(self.folder)
        self.output = folder / "output"
        quiet = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        self._environ = {**os.environ, **quiet, "EDL_HOME": str(folder / "home")}
        self._edl = str(Path(sys.executable).with_name("edl"))

    def run(self) -> list[str]:
        """What is wrong with it."""
        command = [self._edl, "run", "-np", "2", "--max-np", "3", "--max-restarts", "0", "--job", JOB]
        command += ["--check-weights", "1", "--audit", str(self.folder.parent / "audit")]
        command += ["--ring", self._ring] if self._ring else []
        command += [sys.executable, self._path.name, *self.script.arguments]
        with self.output.open("wb") as output:
            job = subprocess.Popen(
                command, cwd=self.folder, env=self._environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            self._wait(lambda: self._status().get("step", 0) > 5, "it trains", job)
            self._run("scale", JOB, "3", "--wait", "--timeout", "120")
            came = self._status()
            self._wait(lambda: self._status().get("step", 0) > came["step"] + 10, "three train", job)
            workers = self._status().get("workers") or came["workers"]  # of one that has just ended nothing is told
            os.kill(workers[-1]["pid"], signal.SIGKILL)
            code = job.wait(END_S)
            return [*([] if code == 0 else [f"exit code {code}"]), *self._complaints()]
        except (RuntimeError, ProcessLookupError, subprocess.TimeoutExpired) as error:
            return [str(error)]
        finally:
            if job.poll() is None:
                job.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(30)

    @property
    def refused(self) -> str:
        """The line by which edl refused the script before its first step, if that is what happened."""
        if any(one["kind"] == "step" or one.get("step", 0) > 1 for one in self._events()):
            return ""
        lines = [line for line in self.output.read_text(errors="replace").splitlines() if "UsageError:" in line]
        return lines[-1] if lines else ""

    def _events(self) -> list[dict[str, Any]]:
        done = self._edl_says("events", JOB, "--json")
        return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []

    def _complaints(self) -> list[str]:
        events = self._events()
        scaled = [(event["from"], event["to"]) for event in events if event["kind"] == "scaled"]
        found = [] if scaled == [(2, 3), (3, 2)] else [f"sizes {scaled}, not 2 -> 3 -> 2"]
        found += [f"the weights differed: {event}" for event in events if event["kind"] == "diverged"]
        verified = self._edl_says("data", "verify", str(self.folder.parent / "audit"))
        said = (verified.stdout + verified.stderr).strip().splitlines() or [""]
        return found if verified.returncode == 0 else [*found, f"edl data verify: {said[-1]}"]

    def _status(self) -> dict[str, Any]:
        done = self._edl_says("status", JOB, "--json")
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def _run(self, *arguments: str) -> None:
        done = self._edl_says(*arguments)
        if done.returncode:
            raise RuntimeError(f"edl {' '.join(arguments)}: {done.stderr.strip()}")

    def _edl_says(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._edl, *arguments], cwd=self.folder, env=self._environ, capture_output=True, text=True, check=False
        )

    def _wait(self, true: Callable[[], bool], what: str, job: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if job.poll() is not None:
                raise RuntimeError(f"it ended with {job.returncode} before {what}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {PATIENCE_S:g} s: {what}")
            time.sleep(0.3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path, metavar="CLONES")
    parser.add_argument("--scripts", nargs="+", choices=[script.name for script in SCRIPTS])
    parser.add_argument("--ring", choices=["horovod", "torch"])
    options = parser.parse_args()
    good = True
    for script in SCRIPTS:
        if options.scripts and script.name not in options.scripts:
            continue
        source = options.clones / script.clone / script.path
        if not source.is_file():
            print(f"{script.name}: left out, as {options.clones} has no {script.clone}/{script.path}", flush=True)
            continue
        here = changed(source.read_text(), script.here)
        after = changed(here, script.lines)
        print(f"{script.name}:\n{textwrap.indent(chr(10).join(difference(here, after)), '    ')}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(script, after, options.clones, Path(folder), options.ring)
            began = time.monotonic()
            wrong = trial.run()
            refused = trial.refused if wrong else ""
            outcome = f"refused: {refused}" if refused else "; ".join(wrong) or "good"
            print(f"  {outcome} ({time.monotonic() - began:.0f} s)", flush=True)
            if wrong and not refused:
                print(trial.output.read_text(errors="replace")[-3000:], file=sys.stderr, flush=True)
            good = good and (not wrong or bool(refused))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
