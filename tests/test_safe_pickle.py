"""Foreign pickles: arrays and containers load, everything else is refused before it runs."""

import builtins
import collections
import io
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewgraft.data.safe_pickle import load_plain_pickle
from fewgraft.errors import FewgraftError


class Calls:
    """Pickled, this is a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def written(tmp_path: Path, content: Any, protocol: int = 4) -> Path:
    path = tmp_path / "foreign.pickle"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_containers_and_arrays_load(tmp_path: Path, protocol: int) -> None:
    content = {
        "data": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "labels": [1, 2, np.int64(3)],
        "names": collections.OrderedDict(a=1),
        "nested": {"text": ("ä", b"\xff", None, True, 1.5, {7})},
        "objects": np.array([np.zeros(2, np.uint8), np.ones(3, np.uint8)], dtype=object),
    }
    loaded = load_plain_pickle(written(tmp_path, content, protocol))
    assert (loaded["data"] == content["data"]).all()
    assert loaded["data"].dtype == np.uint8
    assert loaded["labels"] == [1, 2, 3]
    assert loaded["names"] == {"a": 1}
    assert [len(part) for part in loaded["objects"]] == [2, 3]


def test_the_old_home_of_numpy_is_known_under_the_new(tmp_path: Path) -> None:
    path = written(tmp_path, {"data": np.arange(3)}, protocol=2)
    raw = path.read_bytes()
    assert b"numpy._core.multiarray" in raw or b"numpy.core.multiarray" in raw
    for core in (b"numpy.core.multiarray", b"numpy._core.multiarray"):
        other = raw.replace(b"numpy._core.multiarray", core).replace(b"numpy.core.multiarray", core)
        path.write_bytes(other)
        assert load_plain_pickle(path)["data"].tolist() == [0, 1, 2]


def test_keys_of_python_2_are_text(tmp_path: Path) -> None:
    # What Python 2 wrote for {'data': 'abc'}: opcodes for short byte strings.
    (tmp_path / "old.pickle").write_bytes(b"\x80\x02}U\x04dataU\x03abcs.")
    assert load_plain_pickle(tmp_path / "old.pickle") == {"data": "abc"}
    assert load_plain_pickle(written(tmp_path, {b"data": 1})) == {"data": 1}


@pytest.mark.parametrize(
    ("attack", "name"),
    [
        (lambda spot: Calls(os.system, f"touch {spot}"), "system"),
        (lambda spot: Calls(subprocess.Popen, ["touch", str(spot)]), "subprocess.Popen"),
        (lambda spot: Calls(builtins.eval, f"open({str(spot)!r}, 'w')"), "builtins.eval"),
        (lambda spot: Calls(builtins.open, str(spot), "w"), "open"),
        (lambda spot: Calls(np.save, str(spot), 1), "numpy.save"),
        (lambda spot: Calls(np.fromfile, str(spot)), "numpy"),
        (lambda spot: Calls(getattr, "text", "upper"), "builtins.getattr"),
        (lambda spot: {"data": [1, {"deep": Calls(os.system, f"touch {spot}")}]}, "system"),
    ],
)
def test_a_pickle_that_calls_anything_is_refused_by_name(
    tmp_path: Path, attack: Any, name: str
) -> None:
    spot = tmp_path / "was here"
    path = written(tmp_path, attack(spot))
    with pytest.raises(FewgraftError, match=r"asks for .*refused") as refused:
        load_plain_pickle(path)
    assert name in refused.value.problem
    assert str(path) in refused.value.problem
    assert not spot.exists(), "the call was made"


def test_the_codec_that_old_pickles_need_does_no_other_decoding(tmp_path: Path) -> None:
    path = tmp_path / "codec.pickle"
    path.write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.")
    with pytest.raises(FewgraftError, match="hex"):
        load_plain_pickle(path)


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps({"a": list(range(99))})[:-30]])
def test_a_damaged_pickle_is_an_error_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.pickle"
    path.write_bytes(content)
    with pytest.raises(FewgraftError, match=r"damaged\.pickle"):
        load_plain_pickle(path)
    with pytest.raises(FewgraftError, match="gone"):
        load_plain_pickle(tmp_path / "gone")


def test_the_plain_loader_would_have_run_it(tmp_path: Path) -> None:
    """The attack is real: the standard loader makes the call."""
    spot = tmp_path / "was here"
    pickle.load(io.BytesIO(pickle.dumps(Calls(os.system, f"touch '{spot}'"))))
    assert spot.exists()
