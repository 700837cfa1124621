"""Training scripts of other projects: the lines that edl's pages have changed in each, and the data made up for it.

Owns: what is written in each script's place, with its arguments. `tests/soaks/public_scripts.py` runs them.
"""

# ruff: noqa: E501 - lines of the scripts, and what comes in their places

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

Lines = tuple[tuple[str, str], ...]  # what stands in the script, and what comes in its place


class Script(NamedTuple):
    """One of another project's."""

    name: str
    clone: str  # OWNER/NAME
    path: str
    lines: Lines  # as edl's pages tell
    arguments: str = ""
    here: Lines = ()  # for this machine, whatever trains: sizes, a CPU, newer libraries
    beside: tuple[str, ...] = ()  # files of the clone that it imports
    data: Callable[[Path], None] = lambda _folder: None
    # Of a script of which no line changes:
    room: str = ""  # the folder of the clone that is copied
    flags: str = ""  # of `edl torchrun`
    names_cuda: bool = False  # what it names as CUDA devices is the CPU here
    pause_s: float = 0.2  # after each update, until three have trained and one is lost
    environ: tuple[tuple[str, str], ...] = ()
    has: str = ""  # what is particular about it

    @property
    def is_unchanged(self) -> bool:
        return not self.lines


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
    data.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", 200_000), ("val", 4_000)):
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


def prepared_with_schedule(loop: str) -> Lines:
    prepared = (
        "    model, optimizer, train_loader = edl.prepare(model, optimizer, train_loader)\n"
        "    edl.register(scheduler=scheduler)\n"
        "    for epoch in train_loader.epochs(args.epochs):"
    )
    return IMPORT_TORCH, (loop, prepared)


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
        "60 10 --batch_size 8",
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
        prepared_with_schedule("    for epoch in range(1, args.epochs + 1):"),
        "--epochs 3 --batch-size 16 --no-accel",
        data=lambda folder: mnist(folder, 6_000, 200),
    ),
    Script(
        "mnist_dry_run",
        "pytorch/examples",
        "mnist/main.py",
        prepared_with_schedule("    for epoch in range(1, args.epochs + 1):"),
        "--epochs 2 --batch-size 64 --no-accel --dry-run",
        data=lambda folder: mnist(folder, 12_000, 100),
    ),
    Script(
        "imagenet_dummy",
        "pytorch/examples",
        "imagenet/main.py",
        prepared_with_schedule("    for epoch in range(args.start_epoch, args.epochs):"),
        "--dummy -a resnet18 -b 2 -j 0 --epochs 2 --no-accel --lr 0.001",
        (("1281167, (3, 224, 224)", "400, (3, 64, 64)"), ("50000, (3, 224, 224)", "8, (3, 64, 64)")),
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
            "--dataset=shakespeare_char --device=cpu --dtype=float32 --compile=False --n_layer=2 --n_head=2 --n_embd=32 "
            "--block_size=32 --batch_size=8 --gradient_accumulation_steps=2 --dropout=0.1 --max_iters=100000 "
            "--lr_decay_iters=1000 --warmup_iters=100 --eval_interval=100 --eval_iters=2 --log_interval=20"
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
        "--dataset fake --batchSize 2 --ngf 4 --ndf 4 --niter 10 --workers 0 --manualSeed 1",
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
            (
                "    num_update_steps_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)\n",
                "",
            ),
            (
                "    # Prepare everything with our `accelerator`.\n",
                "    num_update_steps_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)\n",
            ),
            (
                "    # Get the metric function\n",
                "    lr_scheduler = accelerator.prepare(lr_scheduler)\n    # Get the metric function\n",
            ),
        ),
        "--train_file train.csv --validation_file valid.csv --model_name_or_path bert --num_train_epochs 2 --per_device_train_batch_size 4 --seed 1",
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
        "--epochs 3 --batch-size 16 --no-cuda",
        (("size_average=False", "reduction='sum'"),),
        data=lambda folder: mnist(folder, 6_000, 100),
    ),
    Script(
        "horovod_mnist_as_told",
        "horovod/horovod",
        "examples/elastic/pytorch/pytorch_mnist_elastic.py",
        (
            ("import horovod.torch as hvd\n", "import edl.torch as hvd\n"),
            (
                "torch.utils.data.distributed.DistributedSampler(\n    train_dataset, num_replicas=hvd.size(), rank=hvd.rank())",
                "hvd.elastic.ElasticSampler(train_dataset)",
            ),
            ("train_loader = torch.utils.data.DataLoader(", "train_loader = hvd.elastic.DataLoader("),
            ("        steps_remaining = len(train_loader) - state.batch\n", ""),
            ("            if state.batch >= steps_remaining:\n                break\n", ""),
        ),
        "--epochs 6 --batch-size 16 --no-cuda",
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
        "--trainer.max_epochs=4 --trainer.enable_progress_bar=false",
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
        "--model Transformer --use-optimizer --lr 0.001 --emsize 16 --nhid 16 --nlayers 1 --nhead 2 --epochs 2 --batch_size 4 --bptt 16",
        beside=("word_language_model/data.py", "word_language_model/model.py"),
        data=words,
    ),
)
