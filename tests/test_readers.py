"""Every reader gives a result or a `FewgraftError`, whatever is in its files."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaign.attack import fewgraft
from campaign.kinds import READERS, Reader
from campaign.layouts import MINI_TABLES, mini_tables, photo_tree
from campaign.readers import ATTACKS, COMMANDS, Damage, why_not_clean
from fewgraft import cli
from fewgraft.backbones import backbone_spec, onnx_trial
from fewgraft.data.memory_limit import at_most_more
from fewgraft.data.npz import npz_rows
from fewgraft.data.sources import SourceOptions, open_source
from fewgraft.errors import FewgraftError
from fewgraft.extras import extra
from fewgraft.heads import read_head, read_names
from fewgraft.methods import method_spec
from fewgraft.model import load_model
from fewgraft.training.recipe import load_recipe

EXAMPLES = 60


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damaged_files_are_read_or_refused(reader: Reader, tmp_path: Path) -> None:
    damage = Damage(tmp_path / "files", reader.make, reader.damaged)
    reader.read(damage.folder)  # the valid files are read

    @settings(
        max_examples=max(3, round(EXAMPLES * min(1, reader.weight))),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**32))
    def holds(seed: int) -> None:
        for file in damage.inputs(Random(seed), 1):
            why = why_not_clean(reader.read, damage.folder)
            assert not why, f"{file}: {why}"

    holds()


def test_every_reader_is_in_the_campaign() -> None:
    names = {reader.name for reader in READERS}
    assert len(names) == len(READERS)
    assert COMMANDS.keys() <= names
    assert len(ATTACKS) == 4


# --- what chance would not find soon ---


@pytest.fixture
def model(tmp_path: Path) -> Path:
    damage = Damage(tmp_path / "model", next(r for r in READERS if r.name == "model").make)
    return damage.folder / "m"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("width", 10**12),
        ("width", 0),
        ("size", 0),
        ("size", -5),
        ("size", 10**9),
        ("crop", 1e-9),
        ("channels", 7),
        ("mean", [0.5]),
        ("std", [0.2, 0.0, 0.2]),
        ("std", [0.2, float("nan"), 0.2]),
        ("classes", []),
        ("classes", ["a", "a", "b"]),
        ("classes", [f"{i}" for i in range(100_000)]),
        ("examples", [1]),
        ("metrics", {"acc": float("inf")}),
        ("format", 2),
    ],
)
def test_cards_with_impossible_numbers(model: Path, field: str, value: object) -> None:
    card = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**card, "examples": [], field: value}))
    with pytest.raises(FewgraftError, match=f"{field}|class weights|classes"):
        load_model(model)


def test_cards_that_nest_deeply(model: Path) -> None:
    (model / "model.json").write_text('{"recipe": ' + "[" * 100_000)
    with pytest.raises(FewgraftError, match="nests too deeply"):
        load_model(model)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 10**6},
        {"hidden_size": 10**12},
        {"num_hidden_layers": 10**5},
        {"intermediate_size": 10**9},
        {"image_size": 10**6},
        {"patch_size": 0},
        {"model_type": "bert", "vocab_size": 10**9},
        {"model_type": "no such"},
        {"num_hidden_layers": 10**100},
    ],
)
def test_a_network_is_never_larger_than_its_weights(
    transformer: Path, change: dict[str, object]
) -> None:
    """The settings of a card can ask for any amount of memory."""
    card = json.loads((transformer / "model.json").read_text())
    card["backbone_settings"]["config"] |= change
    with TemporaryDirectory() as folder:
        shutil.copytree(transformer, changed := Path(folder, "m"))
        (changed / "model.json").write_text(json.dumps(card))
        assert not why_not_clean(_refused(load_model), changed)


def test_a_folder_of_transformers_is_never_larger_than_its_weights(tmp_path: Path) -> None:
    make, read = next((r.make, r.read) for r in READERS if r.name == "folder of transformers")
    folder = Damage(tmp_path / "f", make).folder
    [path] = folder.rglob("config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 10**100}))
    assert not why_not_clean(_refused(read), folder)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = next(reader for reader in READERS if reader.name == "model on a transformer").make
    return Damage(tmp_path_factory.mktemp("hf") / "f", make).folder / "m"


def _refused(read: Callable[[Path], object]) -> Callable[[Path], object]:
    """A reader that must refuse."""

    def strict(path: Path) -> None:
        with pytest.raises(FewgraftError):
            read(path)

    return strict


def test_a_small_npz_that_would_unpack_to_gigabytes(tmp_path: Path) -> None:
    """Both where the header lies, and where the bytes are really there."""
    header = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": (2, 10**9, 1, 3)}
    np.lib.format.write_array_header_1_0(header, about)
    for size in (10, 2 * 10**8):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("images.npy", header.getvalue() + bytes(size))
        assert not why_not_clean(
            _refused(lambda path: next(npz_rows(path, "images"))), tmp_path / "a.npz"
        )


def test_a_small_parquet_file_that_would_unpack_to_gigabytes(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as pq

    rows = pyarrow.array([{"bytes": b"x" * 2_000_000, "path": "p" * 2_000_000}] * 16)
    table = {"img": pyarrow.chunked_array([rows] * 64), "fine_label": [1] * 1024}
    for half in ("train", "test"):
        pq.write_table(pyarrow.table(table), tmp_path / f"{half}.parquet", compression="zstd")
    assert (tmp_path / "test.parquet").stat().st_size < 2**20
    assert not why_not_clean(
        _refused(lambda path: open_source("cifar-fs", path, SourceOptions())), tmp_path
    )


def test_one_picture_that_many_rows_of_a_parquet_file_share(tmp_path: Path) -> None:
    """It is written once, and unpacks to as many copies as there are rows."""
    import pyarrow
    import pyarrow.parquet as pq

    rows = pyarrow.array([{"bytes": bytes(4 << 20), "path": "p"}] * 128)
    table = pyarrow.table({"img": rows, "fine_label": [1] * 128})
    for half in ("train", "test"):
        pq.write_table(table, tmp_path / f"{half}.parquet", compression="zstd")

    def read(path: Path) -> object:
        return sum(1 for _ in open_source("cifar-fs", path, SourceOptions()).items)

    assert not why_not_clean(_refused(read), tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such limit")
def test_memory_is_limited_for_a_while() -> None:
    with pytest.raises(MemoryError), at_most_more(64 << 20):
        np.empty(256 << 20, np.uint8)
    with at_most_more(512 << 20):
        np.empty(256 << 20, np.uint8)
    np.empty(1 << 30, np.uint8)


def test_heads_that_would_fill_the_memory(tmp_path: Path) -> None:
    (names := tmp_path / "names.txt").write_text("a\nb\nc")
    torch.save({"w": torch.ones(3, 4)}, plain := tmp_path / "plain.pt")
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(tmp_path / "bomb.pt", "w", 8) as new:
        for name in old.namelist():
            new.writestr(name, bytes(2**28) if name.endswith("data/0") else old.read(name))
    torch.save({"w": torch.ones(1).expand(3, 10**9)}, tmp_path / "expanded.pt")
    tree: dict[str, object] = {}
    for _ in range(50):
        tree = {"a": tree, "b": tree}
    torch.save(tree, tmp_path / "tree.pt")
    for name in ("bomb", "expanded", "tree"):
        read = _refused(lambda file: read_head(file, names))
        assert not why_not_clean(read, tmp_path / f"{name}.pt"), name


@pytest.mark.parametrize("archive", [False, True], ids=["old file", "archive"])
def test_a_long_name_in_a_head_is_no_endless_search(tmp_path: Path, archive: bool) -> None:
    """torch would look for what it refuses in a message that holds the name."""
    (names := tmp_path / "names.txt").write_text("a\nb\nc")
    plain, changed = tmp_path / "plain.pt", tmp_path / "changed.pt"
    torch.save({"w": torch.ones(3, 4)}, plain, _use_new_zipfile_serialization=archive)
    call = b"c" + b"x" * 200_000 + b"\nname\n."
    if archive:
        with zipfile.ZipFile(plain) as old, zipfile.ZipFile(changed, "w") as new:
            for name in old.namelist():
                new.writestr(name, call if name.endswith(".pkl") else old.read(name))
    else:
        start = plain.read_bytes().index(b"}", 60)  # the state dict, behind what is written first
        changed.write_bytes(plain.read_bytes()[:start] + call)
    with pytest.raises(FewgraftError, match=r"changed.pt holds a name of 200,\d\d\d characters"):
        read_head(changed, names)
    assert read_head(plain, names)[0].shape == (3, 4)


def graph(path: Path, *nodes: Any, weights: Sequence[Any]) -> Path:
    """A network of these nodes, from x [n, 3, 16, 16] to y."""
    onnx = extra("onnx", "onnx")
    floats = onnx.TensorProto.FLOAT
    ends = [
        [onnx.helper.make_tensor_value_info(name, floats, shape)]
        for name, shape in (("x", ["n", 3, 16, 16]), ("y", [None, 5]))
    ]
    made = onnx.helper.make_graph(list(nodes), "graph", *ends, list(weights))
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(made, opset_imports=opset, ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("place", ["../../../../../../../etc/passwd", "/etc/passwd", "names.txt"])
def test_onnx_files_that_point_at_others(tmp_path: Path, place: str) -> None:
    onnx = extra("onnx", "onnx")
    (names := tmp_path / "names.txt").write_text("a\nb\nc\nd\ne")
    weights = onnx.TensorProto(name="w", data_type=1, dims=[5, 768], data_location=1)
    for key, value in (("location", place), ("offset", "0"), ("length", str(5 * 768 * 4))):
        weights.external_data.add(key=key, value=value)
    nodes = [
        onnx.helper.make_node("Flatten", ["x"], ["f"]),
        onnx.helper.make_node("Gemm", ["f", "w"], ["y"], transB=1),
    ]
    file = graph(tmp_path / "network.onnx", *nodes, weights=[weights])
    with pytest.raises(FewgraftError, match="another file"):
        backbone_spec(f"onnx:{file}")
    with pytest.raises(FewgraftError, match=r"network\.onnx"):
        read_head(file, names)


def test_an_onnx_file_that_would_fill_the_memory(tmp_path: Path) -> None:
    onnx = extra("onnx", "onnx")
    huge = onnx.numpy_helper.from_array(np.array([20, 10**9], np.int64), "shape")
    nodes = [
        onnx.helper.make_node("ConstantOfShape", ["shape"], ["huge"]),
        onnx.helper.make_node("ReduceSum", ["huge"], ["one"], keepdims=0),
        onnx.helper.make_node("Flatten", ["x"], ["f"]),
        onnx.helper.make_node("Add", ["f", "one"], ["y"]),
    ]
    file = graph(tmp_path / "network.onnx", *nodes, weights=[huge])
    assert not why_not_clean(_refused(lambda path: backbone_spec(f"onnx:{path}")), file)


def test_a_file_that_ends_onnxruntime_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that crashes as onnxruntime might: the process that asked lives on."""
    (trial := tmp_path / "trial.py").write_text("import os\nos.abort()")
    monkeypatch.setattr(onnx_trial, "__file__", str(trial))
    (tmp_path / "network.onnx").write_bytes(b"made to crash it")
    with pytest.raises(FewgraftError, match="crashes"):
        backbone_spec(f"onnx:{tmp_path / 'network.onnx'}")


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path, model: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (tmp_path / "pipe.txt", Path("/dev/zero")):
        with pytest.raises(FewgraftError, match="not a file"):
            read_names(path)
        with pytest.raises(FewgraftError):
            load_recipe(str(path))
    (model / "model.json").unlink()
    os.mkfifo(model / "model.json")
    with pytest.raises(FewgraftError):
        load_model(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluation": '[{ method = "+pr", hyper = {}, x = 1 }]'}, "no setting 'evaluation.0.x'"),
        ({"distillation": "{ steps = 0 }"}, "distillation"),
        ({"pretraining.rotation.shar": "1"}, "Did you mean 'share'"),
        ({"pretraining.steps": "9" * 5000}, "pretraining.steps"),
        ({"pretraining.steps": "[" * 5000}, "pretraining.steps"),
        ({"pretraining.batch": "1000000000"}, "pretraining.batch"),
        ({"pretraining.optimisation.lr": "nan"}, "pretraining.optimisation.lr"),
        ({"validation.shots": "[]"}, "validation.shots"),
        ({"validation.shots": "[0]"}, "validation.shots"),
        ({"seed": str(2**70)}, "seed"),
        ({"name": "../elsewhere"}, "name"),
        ({"": "1"}, "no setting ''"),
        ({"a.b.c": "1"}, "no setting 'a'"),
    ],
)
def test_odd_changes_to_a_recipe(change: dict[str, str], message: str) -> None:
    with pytest.raises(FewgraftError, match=message):
        load_recipe("icons", change)


@pytest.mark.parametrize("value", ["text", float("nan"), True, None, 10**9, [1], {"a": 1}])
def test_hyper_parameters_of_the_wrong_kind(value: object) -> None:
    with pytest.raises(FewgraftError, match="'steps'"):
        method_spec("+pr").method.changed(steps=value)


@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b"def", b"1 / 0", b"METHODS = 3", b"METHODS = (1,)", b"import no_such"]
)
def test_files_that_hold_no_method(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "mine.py").write_bytes(text)
    with pytest.raises(FewgraftError, match=r"mine\.py"):
        method_spec(str(tmp_path / "mine.py"))


def test_tables_name_no_pictures_elsewhere(tmp_path: Path) -> None:
    mini_tables(tmp_path, MINI_TABLES, 1, 8)
    for name in ("../secret.jpg", "/etc/passwd", ""):
        (tmp_path / "val.csv").write_text(f"filename,label\n{name},n01855672\n")
        with pytest.raises(FewgraftError, match="is no file name"):
            open_source("mini-imagenet", tmp_path, SourceOptions())


def test_damaged_features_are_computed_again(tmp_path: Path) -> None:
    reader = next(reader for reader in READERS if reader.name == "features of a data set")
    damage = Damage(tmp_path / "f", reader.make, reader.damaged)
    (path,) = damage.folder.glob("bank/*/features.npy")
    whole = path.read_bytes()
    for broken in (b"", whole[:-4], whole[:-4] + b"\0\0\xc0\x7f"):  # the last ends with a NaN
        path.write_bytes(broken)
        reader.read(damage.folder)
        assert path.read_bytes() == whole


# --- the command ---


def test_a_full_disk_is_told(tmp_path: Path, model: Path) -> None:
    """A limit on the size of files is how a disk is full for one process."""
    photos = photo_tree(tmp_path / "photos", 3, 3)
    limited = ("prlimit", "--fsize=2000")
    for words in (
        ("base", photos, "--backbone", model, "--out", tmp_path / "out"),
        ("learn", model, "--new", photos, "--out", tmp_path / "out"),
        ("data", "add", "x", "--from", photos),
    ):
        home = tmp_path / f"home {words[0]}"
        said = fewgraft(*words, home=home, before=limited)
        assert said.code == 2, said.err
        assert "cannot write" in said.err
        assert "Traceback" not in said.err
        assert not (tmp_path / "out").exists()


def test_names_that_no_system_takes(tmp_path: Path) -> None:
    for words in (
        ("predict", "a" * 5000, "b"),
        ("base", "a" * 300, "--out", "b" * 300),
        ("data", "show", "c" * 5000),
        ("bench", "table", "d" * 5000),
        ("train", "e" * 5000),
    ):
        said = fewgraft(*words, home=tmp_path)
        assert (said.code, "Traceback" in said.err) == (2, False), said.err


def test_ctrl_c_ends_without_a_traceback(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "fewgraft", "bench", "run", "icons", "--out", out],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    while process.poll() is None and not (out / "results.jsonl").exists():  # it is at work
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "Traceback" not in said
    assert process.returncode == 130, said


@pytest.mark.parametrize("error", [FewgraftError("not weights"), OSError("cut"), ValueError("no")])
def test_ctrl_c_that_a_library_makes_another_error_of(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise error

    monkeypatch.setattr(cli, "app", read)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    assert "error" not in capsys.readouterr().err
