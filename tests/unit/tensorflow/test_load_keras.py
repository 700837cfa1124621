"""A checkpoint's model goes into one of Keras that is here, or the one here stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from stored import folder_at, manifest_of

import edl.tensorflow as edl
from edl.checkpoints import checkpoint_writer
from edl.checkpoints.checkpoint_names import CheckpointName, optimizer_tensor
from edl.checkpoints.manifest import StoredPart, StoredTensor
from edl.checkpoints.part_files import shares
from edl.errors import CheckpointError, UsageError

NAME = CheckpointName(1, 1, 5)


def model(width: int = 6, dtype: str = "float32") -> keras.Model:
    layers = [
        keras.layers.Dense(width, dtype=dtype),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5, seed=1),
        keras.layers.Dense(1),
    ]
    return keras.Sequential([keras.Input((4,)), *layers])


class Scale(tf.Module):  # type: ignore[misc]
    def __init__(self, value: float) -> None:
        super().__init__()
        self.by = tf.Variable([value, value])


def weights(*models: Any) -> list[np.ndarray[Any, Any]]:
    return [one.numpy() for each in models for one in getattr(each, "weights", None) or each.variables]


def save(root: Path, *models: Any, parts: int = 2, framework: str = "tensorflow") -> None:
    """As a job does it: the weights of its models in their order, then what its optimizer has."""
    values = weights(*models)
    named = [
        (getattr(one, "path", one.name)) for each in models for one in getattr(each, "weights", None) or each.variables
    ]
    described = {f"{name}#{at}": value for at, (name, value) in enumerate(zip(named, values, strict=True))}
    described[optimizer_tensor(0, "adam/iteration")] = np.array(7, np.int64)
    write(root, described, parts, framework)


def write(root: Path, described: dict[str, np.ndarray[Any, Any]], parts: int, framework: str = "tensorflow") -> None:
    tensors = tuple(
        StoredTensor(name, value.dtype.name, value.shape, value.nbytes, "optimizer" if "/0/" in name else "model")
        for name, value in described.items()
    )
    by_name, folder, stored = {tensor.name: tensor for tensor in tensors}, folder_at(root), []
    for number, slices in enumerate(shares(tensors, parts)):
        contents = (raw(described[piece.tensor])[piece.offset : piece.end] for piece in slices)
        file = checkpoint_writer.write_part(folder, folder.title(NAME, number, parts), slices, by_name, contents)
        stored.append(StoredPart.of(file, slices))
    checkpoint_writer.publish(folder, manifest_of(folder, NAME, tensors, tuple(stored), framework=framework))


def raw(value: np.ndarray[Any, Any]) -> memoryview:
    lying: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return memoryview(lying)


def same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


def trained() -> keras.Model:
    one = model()
    one.compile(keras.optimizers.Adam(0.1), "mse")
    one.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    return one


def test_weights_and_statistics_are_those_of_the_checkpoint_whatever_keras_calls_them(tmp_path) -> None:
    there, here = trained(), model()
    save(tmp_path, there)
    assert not same(weights(here), weights(there))
    edl.load_checkpoint(tmp_path / "mnist", here)
    assert same(weights(here), weights(there))
    assert np.array_equal(here(np.ones((2, 4))), there(np.ones((2, 4))))


def test_the_model_keeps_its_dtypes(tmp_path) -> None:
    there, here = trained(), model(dtype="float16")
    save(tmp_path, there)
    edl.load_checkpoint(str(tmp_path), here)
    assert here.weights[0].dtype == "float16"
    assert np.array_equal(here.weights[0].numpy(), there.weights[0].numpy().astype(np.float16))


def test_several_models_are_given_in_the_order_of_wrapping(tmp_path) -> None:
    there, here = (trained(), Scale(3.0)), [model(), Scale(0.0)]
    save(tmp_path, *there)
    with pytest.raises(UsageError, match=r"8 variables here, 9 there; build the model that the job trained, or give a"):
        edl.load_checkpoint(tmp_path, here[0])
    edl.load_checkpoint(tmp_path, here)
    assert same(weights(*here), weights(*there))


def test_another_model_is_refused_in_one_line_and_stays_as_it_is(tmp_path) -> None:
    save(tmp_path, trained())
    here = model(width=7)
    before = weights(here)
    with pytest.raises(
        UsageError, match=r"kernel of the model is \[4, 7\], and .*kernel#0 of .* is \[4, 6\]"
    ) as caught:
        edl.load_checkpoint(tmp_path, here)
    assert "\n" not in str(caught.value)
    assert same(weights(here), before)


def test_what_is_broken_is_not_loaded(tmp_path) -> None:
    save(tmp_path, trained())
    here = model()
    before = weights(here)
    path = tmp_path / "mnist" / str(NAME) / "part-0001-of-0002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"part-0001-of-0002\.safetensors is not as it was written"):
        edl.load_checkpoint(tmp_path, here)
    assert same(weights(here), before)


@pytest.mark.parametrize(
    ("here", "line"),
    [
        (lambda: keras.Sequential([keras.layers.Dense(1)]), r"this Sequential has no variables yet: call its build"),
        (dict, r"model must be a Keras model, a tf\.Module, a variable or a list of them, not a dict"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, here, line) -> None:
    save(tmp_path, trained())
    with pytest.raises(UsageError, match=line):
        edl.load_checkpoint(tmp_path, here())


def test_a_checkpoint_of_another_framework_or_without_a_model_is_refused(tmp_path) -> None:
    save(tmp_path / "torch", trained(), framework="torch")
    with pytest.raises(UsageError, match="was written by torch, not by TensorFlow"):
        edl.load_checkpoint(tmp_path / "torch", model())
    save(tmp_path / "none")
    with pytest.raises(UsageError, match=r"has no model: its script gave none to edl\.Optimizer"):
        edl.load_checkpoint(tmp_path / "none", model())


def test_a_type_that_tensorflow_does_not_have_is_refused(tmp_path) -> None:
    write(tmp_path, {"by": np.array(["ab", "cd"])}, 1)
    with pytest.raises(UsageError, match="TensorFlow here has no "):
        edl.load_checkpoint(tmp_path, Scale(1.0))


def test_variables_of_a_graph_are_found_by_name(tmp_path) -> None:
    write(tmp_path, {"w:0": np.array([1.0, 2.0], np.float32), "w/Adam:0": np.zeros(2, np.float32)}, 1)
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        mine, other = v1.get_variable("w", (2,)), v1.get_variable("v", (2,))
        with pytest.raises(UsageError, match="in graph mode call it inside"):
            edl.load_checkpoint(tmp_path, [mine])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            edl.load_checkpoint(tmp_path, [mine])
            assert session.run(mine).tolist() == [1.0, 2.0]
            with pytest.raises(UsageError, match="is of another graph: it has no v:0"):
                edl.load_checkpoint(tmp_path, [other])
