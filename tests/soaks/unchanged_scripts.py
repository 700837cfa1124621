"""Training scripts of other projects that `edl torchrun` runs without a changed line, and the data made up for each.

Owns: their list, with arguments and sizes. `tests/soaks/public_scripts.py --unchanged` runs them.
"""

# ruff: noqa: E501 - arguments of the scripts

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Final

import numpy as np

from tests.soaks.public_scripts_lines import ACCURACY, Script, mnist, sentences, shakespeare

# ------------------------------------------------------------------------------------------------------ made-up data


def letters(folder: Path) -> None:
    (folder / "letters.txt").write_text(
        "".join(chr(97 + one) for one in np.random.default_rng(0).integers(0, 26, 2_500))
    )


def images(folder: Path, train: int, test: int, classes: int = 2) -> None:
    """Images of noise, in a folder for each class."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("val", test)):
        for number in range(count):
            place = folder / part / f"class{number % classes}" / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (48, 48, 3), np.uint8)).save(place)


def stories(folder: Path) -> None:
    (folder / "data" / "tok64").mkdir(parents=True)
    for number in range(3):
        np.random.default_rng(number).integers(0, 64, 20_000, np.uint16).tofile(folder / f"data/tok64/data{number}.bin")


def coder(folder: Path) -> None:
    """What stands for the coder of diffusers, whose weights would be downloaded."""
    (folder / "diffusers").mkdir()
    (folder / "diffusers" / "__init__.py").touch()
    (folder / "diffusers" / "models.py").write_text(CODER)


def pictures_and_coder(folder: Path) -> None:
    images(folder / "images", 120, 2)
    coder(folder)


CODER: Final = """
import torch


class AutoencoderKL(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, _name):
        return cls()

    def encode(self, images):
        self.latent_dist = self
        self.found = torch.nn.functional.avg_pool2d(images, 8).mean(1, keepdim=True).repeat(1, 4, 1, 1)
        return self

    def sample(self):
        return self.found
"""


def cifar(folder: Path, train: int, test: int = 40) -> None:
    """Images of noise in CIFAR-10's own files."""
    place, rng = folder / "cifar-10-batches-py", np.random.default_rng(0)
    place.mkdir(parents=True)
    names = [f"data_batch_{number}" for number in range(1, 6)]
    for name, count in {**dict.fromkeys(names, train // 5), "test_batch": test}.items():
        rows = {"data": rng.integers(0, 256, (count, 3072), np.uint8), "labels": rng.integers(0, 10, count).tolist()}
        (place / name).write_bytes(pickle.dumps(rows))
    (place / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(number) for number in range(10)]}))


def sentence(rng: np.random.Generator, words: int = 40, longest: int = 10) -> str:
    return " ".join(f"w{word}" for word in rng.integers(0, words, rng.integers(3, longest)))


def books(folder: Path) -> None:
    rng = np.random.default_rng(0)
    (folder / "opus_books").mkdir()
    lines = [
        json.dumps({"id": str(number), "translation": {"en": sentence(rng), "it": sentence(rng)}})
        for number in range(900)
    ]
    (folder / "opus_books" / "train.jsonl").write_text("\n".join(lines))
    head = "---\nconfigs:\n- config_name: en-it\n  data_files: train.jsonl\n---\n"
    (folder / "opus_books" / "README.md").write_text(head)


def fabric_mnist(folder: Path) -> None:
    mnist(folder, 1_200, 40)
    (folder.resolve().parents[2] / "Datasets").symlink_to((folder / "data").resolve())


def glue(folder: Path) -> None:
    """A tiny BERT, pairs of sentences, and what stands for the library of metrics, which would be downloaded."""
    sentences(folder)
    (folder / "bert").rename(folder / "bert-base-cased")
    rng = np.random.default_rng(0)
    (folder / "nyu-mll" / "glue").mkdir(parents=True)
    for part, count in (("train", 800), ("validation", 40)):
        pairs = (
            {"sentence1": sentence(rng), "sentence2": sentence(rng), "label": number % 2, "idx": number}
            for number in range(count)
        )
        (folder / "nyu-mll" / "glue" / f"{part}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    files = "".join(f"  - split: {part}\n    path: {part}.jsonl\n" for part in ("train", "validation"))
    (folder / "nyu-mll" / "glue" / "README.md").write_text(
        f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n"
    )
    (folder / "evaluate.py").write_text(ACCURACY.replace("load_metric = lambda name", "load = lambda *names"))


def language_model(folder: Path) -> None:
    """Some text, and a tiny GPT-2 that was never trained."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, PreTrainedTokenizerFast

    rng = np.random.default_rng(0)
    (folder / "text").mkdir()
    (folder / "text" / "train.txt").write_text("\n".join(sentence(rng) for _ in range(2_000)))
    words = Tokenizer(
        models.WordLevel({"[UNK]": 0, **{f"w{number}": number + 1 for number in range(40)}}, unk_token="[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder / "tiny")
    GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2).save_pretrained(folder / "tiny")


# ------------------------------------------------------------------------------------------------------- the scripts

UNCHANGED: Final = (
    Script(
        "ddp_tutorial",
        "pytorch/examples",
        "distributed/ddp-tutorial-series/multigpu_torchrun.py",
        (),
        "3 1 --batch_size 4",
        room="distributed/ddp-tutorial-series",
        names_cuda=True,
        has="a snapshot each epoch, `next(iter(loader))`",
    ),
    Script(
        "ddp_multinode",
        "pytorch/examples",
        "distributed/ddp-tutorial-series/multinode.py",
        (),
        "3 1 --batch_size 4",
        room="distributed/ddp-tutorial-series",
        names_cuda=True,
        has="the same for several machines: a snapshot by `LOCAL_RANK`",
    ),
    Script(
        "aws_ddp",
        "aws-samples/awsome-distributed-training",
        "3.test_cases/pytorch/ddp/ddp.py",
        (),
        "--total_epochs 3 --save_every 1 --batch_size 8",
        data=lambda folder: mnist(folder, 3_000, 100),
        room="3.test_cases/pytorch/ddp",
        has="a snapshot each epoch, mlflow",
    ),
    Script(
        "mingpt_ddp",
        "pytorch/examples",
        "distributed/minGPT-ddp/mingpt/main.py",
        (),
        "data_config.path=letters.txt data_config.block_size=16 data_config.truncate=1.0 gpt_config.n_layer=1 "
        "gpt_config.n_head=2 gpt_config.n_embd=16 trainer_config.max_epochs=3 trainer_config.batch_size=4 "
        "trainer_config.data_loader_workers=0 trainer_config.save_every=1",
        data=letters,
        room="distributed/minGPT-ddp/mingpt",
        names_cuda=True,
        has="float16 with `GradScaler`, clipped gradients, a snapshot each epoch, an evaluation over a `DistributedSampler`",
    ),
    Script(
        "imagenet",
        "pytorch/examples",
        "imagenet/main.py",
        (),
        "images -a shufflenet_v2_x0_5 -b 2 -j 0 --epochs 3 --lr 0.001 --dist-url env:// --dist-backend nccl --world-size -1",
        data=lambda folder: images(folder / "images", 200, 10),
        room="imagenet",
        names_cuda=True,
        has="`StepLR`, BatchNorm, an evaluation with `all_reduce`, a checkpoint each epoch",
    ),
    Script(
        "nanogpt",
        "karpathy/nanoGPT",
        "train.py",
        (),
        "--dataset=shakespeare_char --dtype=float16 --compile=False --n_layer=2 --n_head=2 --n_embd=32 --block_size=32 "
        "--batch_size=4 --gradient_accumulation_steps=4 --dropout=0.1 --max_iters=400 --lr_decay_iters=400 "
        "--warmup_iters=100 --eval_interval=100 --eval_iters=2 --log_interval=20",
        data=shakespeare,
        names_cuda=True,
        has="batches of its own, 2 of an update, float16 with `GradScaler`, rates by its own count, checkpoints",
    ),
    Script(
        "llama2c",
        "karpathy/llama2.c",
        "train.py",
        (),
        "--dtype=float16 --compile=False --vocab_source=custom --vocab_size=64 --dim=32 --n_layers=1 --n_heads=2 "
        "--n_kv_heads=2 --max_seq_len=16 --batch_size=4 --gradient_accumulation_steps=4 --max_iters=300 --warmup_iters=50 "
        "--eval_interval=100 --eval_iters=2 --out_dir=out",
        data=stories,
        names_cuda=True,
        has="an `IterableDataset` by rank, 2 batches of an update, float16 with `GradScaler`, checkpoints",
    ),
    Script(
        "timm",
        "huggingface/pytorch-image-models",
        "train.py",
        (),
        "--data-dir images --device cpu --model test_resnet --img-size 32 -b 4 --epochs 8 --workers 1 --num-classes 2 "
        "--opt adamw --lr 0.001 --sched cosine --warmup-epochs 0 --model-ema --no-prefetcher --log-interval 10 --output out",
        data=lambda folder: images(folder / "images", 500, 16),
        has="rates by count of updates, an average of the weights, `reduce` of buffers, checkpoints",
    ),
    Script(
        "torchvision",
        "growlix/pytorch-i1k-baseline",
        "references/classification/train.py",
        (),
        "--data-path images --model shufflenet_v2_x0_5 -b 4 -j 0 --epochs 3 --train-crop-size 32 --val-resize-size 36 "
        "--val-crop-size 32 --output-dir out --amp --model-ema --model-ema-steps 4 --lr-warmup-epochs 1 --mixup-alpha 0.2 "
        "--lr-scheduler cosineannealinglr --print-freq 20 --log-wandb",
        data=lambda folder: images(folder / "images", 500, 20, 5),
        room="references/classification",
        names_cuda=True,
        environ=(("WANDB_MODE", "offline"),),
        has="torchvision's: AMP, `SequentialLR`, an average of the weights (EMA), mixup, an evaluation with `all_reduce`, checkpoints",
    ),
    Script(
        "dino",
        "facebookresearch/dino",
        "main_dino.py",
        (),
        "--arch vit_tiny --patch_size 32 --out_dim 64 --local_crops_number 1 --batch_size_per_gpu 2 --epochs 3 --warmup_epochs 1 "
        "--warmup_teacher_temp_epochs 1 --data_path images/train --num_workers 0 --output_dir .",
        data=lambda folder: images(folder / "images", 200, 2),
        names_cuda=True,
        has="a teacher that is an average of the student, a centre of all workers, rates by the batch's number, AMP",
    ),
    Script(
        "convnext",
        "facebookresearch/ConvNeXt",
        "main.py",
        (),
        "--model convnext_tiny --input_size 32 --batch_size 2 --update_freq 2 --use_amp true --model_ema true --mixup 0 --cutmix 0 --aa= --epochs 3 "
        "--data_set image_folder --data_path images/train --eval_data_path images/val --nb_classes 8 --num_workers 0 "
        "--warmup_epochs 1 --output_dir out",
        data=lambda folder: images(folder / "images", 320, 16, 8),
        names_cuda=True,
        has="2 batches of an update, rates by the batch's number, AMP, EMA, checkpoints",
    ),
    Script(
        "deit",
        "facebookresearch/deit",
        "main.py",
        (),
        "--model deit_tiny_patch16_224 --input-size 64 --batch-size 4 --data-path images --no-repeated-aug --aa= --mixup 0 --cutmix 0 --aa= --epochs 3 "
        "--num_workers 0 --output_dir out --dist-eval",
        data=lambda folder: images(folder / "images", 500, 16),
        names_cuda=True,
        has="AMP, EMA, schedules of timm's, checkpoints",
    ),
    Script(
        "dit",
        "facebookresearch/DiT",
        "train.py",
        (),
        "--data-path images/train --model DiT-S/8 --num-classes 2 --epochs 3 --global-batch-size 4 --num-workers 0 "
        "--log-every 5 --ckpt-every 20",
        data=pictures_and_coder,
        names_cuda=True,
        has="EMA, `all_reduce` and `barrier` in the loop by a count of its own, checkpoints",
    ),
    Script(
        "cifar_tutorial",
        "BIGBALLON/distribuuuu",
        "tutorial/mnmc_ddp_launch.py",
        (),
        data=lambda folder: cifar(folder / "data", 5_120),
        room="tutorial",
        names_cuda=True,
        has="a loader with processes, BatchNorm, ResNet-18",
    ),
    Script(
        "distribuuuu",
        "BIGBALLON/distribuuuu",
        "train_net.py",
        (),
        "--cfg config/resnet18.yaml OUT_DIR ./out TRAIN.DATASET images TEST.DATASET images TRAIN.IM_SIZE 32 TEST.IM_SIZE 32 "
        "TRAIN.BATCH_SIZE 4 TEST.BATCH_SIZE 4 TRAIN.WORKERS 0 OPTIM.MAX_EPOCH 3 OPTIM.WARMUP_EPOCHS 1 MODEL.NUM_CLASSES 10 "
        "OPTIM.BASE_LR 0.001",
        data=lambda folder: images(folder / "images", 400, 20, 10),
        names_cuda=True,
        has="`all_reduce` of losses in each step, rates by epoch, an automatic restart from its checkpoint",
    ),
    Script(
        "transformer",
        "hkproj/pytorch-transformer-distributed",
        "train.py",
        (),
        "--batch_size 4 --num_epochs 3 --seq_len 24 --d_model 32",
        data=books,
        names_cuda=True,
        environ=(("WANDB_MODE", "offline"),),
        has="tqdm, a restart from its newest checkpoint, no `set_epoch()`, an evaluation on rank 0 alone",
    ),
    Script(
        "fabric",
        "Lightning-AI/pytorch-lightning",
        "examples/fabric/image_classifier/train_fabric.py",
        (),
        "--batch-size 4 --epochs 3 --save-model",
        data=fabric_mnist,
        room="examples/fabric/image_classifier",
        environ=(
            ("LT_CLI_USED", "1"),
            ("LT_ACCELERATOR", "cpu"),
            ("LT_STRATEGY", "ddp"),
            ("LT_DEVICES", "2"),
        ),  # what `fabric run --accelerator cpu --strategy ddp --devices 2` sets
        has="Lightning Fabric, `StepLR`, torchmetrics, `all_gather`",
    ),
    Script(
        "ignite",
        "pytorch/ignite",
        "examples/cifar10/main.py",
        (),
        "run --data_path data --output_path out --model shufflenet_v2_x0_5 --batch_size 8 --num_workers 0 --num_epochs 3 "
        "--num_warmup_epochs 1 --backend gloo --validate_every 1 --log_every_iters 20",
        data=lambda folder: cifar(folder / "data", 500),
        room="examples/cifar10",
        has="Ignite's engine, a schedule of its own, checkpoints",
    ),
    Script(
        "vicreg",
        "facebookresearch/vicreg",
        "main_vicreg.py",
        (),
        "--data-dir images --exp-dir out --arch resnet34 --mlp 32-32-32 --epochs 3 --batch-size 8 --num-workers 0",
        data=lambda folder: images(folder / "images", 200, 2),
        names_cuda=True,
        has="`SyncBatchNorm`, gathering with gradients",
    ),
    Script(
        "simsiam",
        "facebookresearch/simsiam",
        "main_simsiam.py",
        (),
        "images --multiprocessing-distributed --dist-url tcp://localhost:10001 --world-size 1 --rank 0",
        data=lambda folder: images(folder / "images", 200, 2),
        names_cuda=True,
        has="starts its workers itself",
    ),
    Script(
        "fsdp2",
        "pytorch/examples",
        "distributed/FSDP2/example.py",
        (),
        room="distributed/FSDP2",
        names_cuda=True,
        has="`fully_shard`",
    ),
    Script(
        "zero",
        "LambdaLabsML/distributed-training-guide",
        "02-distributed-data-parallel/train_llm.py",
        (),
        "-d text -m tiny",
        data=language_model,
        room="02-distributed-data-parallel",
        names_cuda=True,
        has="`ZeroRedundancyOptimizer`, `torch.compile`",
    ),
    Script(
        "accelerate",
        "huggingface/accelerate",
        "examples/nlp_example.py",
        (),
        "--cpu",
        data=glue,
        room="examples",
        has="Accelerate shares out the data",
    ),
)
