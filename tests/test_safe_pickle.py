"""Foreign pickles: arrays and containers load, everything else is refused before it runs."""

import builtins
import collections
import io
import os
import pickle
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from campaign.attack import Trial
from campaign.pickles import PYTHON_2, hostile_pickles, not_plain
from fewgraft.data.safe_pickle import interpret, load_plain_pickle
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


# --- whatever data sets are made of comes out as Python's own loader gives it ---

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=300),
)
ARRAYS = st.sampled_from(["u1", "<i8", ">i4", "f4", "bool", "<U3", ">U3", "S4"]).flatmap(
    lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
KEYS = st.integers(-(2**63), 2**63 - 1)
CONTENTS = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | KEYS, inner, max_size=4)
        | st.sets(KEYS | st.text(max_size=3), max_size=4)
    ),
    max_leaves=12,
)


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, np.ndarray | np.generic):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        nan = theirs.dtype.kind == "f"
        return ours.shape == theirs.shape and bool(np.array_equal(ours, theirs, equal_nan=nan))
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list | tuple):
        pairs = zip(ours, theirs, strict=True)
        return type(ours) is type(theirs) and all(same(a, b) for a, b in pairs)
    return type(ours) is type(theirs) and bool(ours == theirs)


@given(content=CONTENTS, protocol=st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_plain_content_is_what_python_loads(content: Any, protocol: int) -> None:
    packed = pickle.dumps(content, protocol)
    assert same(interpret(memoryview(packed)), pickle.loads(packed))


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_in_any_order_of_axes_load(protocol: int) -> None:
    whole = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for array in (np.asfortranarray(whole), whole.transpose(1, 0, 2), whole[:, ::2], whole[..., 0]):
        packed = pickle.dumps([array, array], protocol)
        first, second = interpret(memoryview(packed))
        assert (first == array).all()
        assert (second == array).all()
        assert not first.flags.writeable


def test_a_file_of_python_2_with_an_array_loads(tmp_path: Path) -> None:
    (tmp_path / "old.pickle").write_bytes(PYTHON_2)
    assert load_plain_pickle(tmp_path / "old.pickle")["data"].tolist() == [[97, 98], [99, 100]]
    theirs = pickle.loads(PYTHON_2, encoding="latin1")
    assert theirs["data"].tolist() == [[97, 98], [99, 100]]


# --- what NumPy's own constructors would have done harm with ---

DTYPE = b"cnumpy\ndtype\n(U\x02%sK\x00K\x01tR"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        # ndarray(shape, dtype, buffer, offset) with a negative offset reads out of bounds
        (b"cnumpy\nndarray\n((K\x08tU\x02u1U\x08abcdefghJ\xf8\xff\xff\xfftR.", "call of numpy"),
        # a dtype of objects makes `scalar` take raw bytes for an address
        (b"cnumpy.core.multiarray\nscalar\n(" + DTYPE % b"O8" + b"U\x08abcdefghtR.", "an object"),
        # the state of a dtype clears the flags that say so
        (
            DTYPE % b"O8" + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb.",
            "bare dtype",
        ),
        # a state given to a function replaces its code
        (b"cnumpy.core.multiarray\n_reconstruct\n}U\x08__code__U\x01xsb.", "state of something"),
        (b"c_codecs\nencode\n}U\x08__code__U\x01xsb.", "state of something"),
        # an array whose state is larger or smaller than its bytes
        (
            ARRAY + b"(K\x01(K\x63t" + DTYPE % b"u1" + b"\x89U\x04abcdtb.",
            "claims 99 bytes and has 4",
        ),
        (ARRAY + b"(K\x01(J\xff\xff\xff\xfft" + DTYPE % b"u1" + b"\x89U\x04abcdtb.", "impossible"),
        (ARRAY + b"(K\x01(K\x01t" + DTYPE % b"O8" + b"\x89U\x08abcdefghtb.", "objects holds bytes"),
        (ARRAY + b"(K\x01(K\x01t" + DTYPE % b"u1" + b"\x89]tb.", "size that it claims"),
        (DTYPE % b"V8" + b".", "an array of 'V8'"),
        # other ways to an object
        (b"Pid\n.", "persistent id"),
        (b"(ios\nsystem\n.", "instance of a class"),
        (b"(cnumpy\ndtype\nU\x02u1o.", "instance of a class"),
        (b"cnumpy\ndtype\n)\x81.", "instance of a class"),
        (b"\x82\x01.", "extension"),
        (b"\x97.", "buffer from elsewhere"),
        (b"cnumpy\nndarray\n.", "bare name"),
        (b"K\x01)R.", "call of what is no name"),
    ],
)
def test_no_description_becomes_an_object(tmp_path: Path, attack: bytes, why: str) -> None:
    (tmp_path / "hostile.pickle").write_bytes(attack)
    with pytest.raises(FewgraftError, match=why):
        load_plain_pickle(tmp_path / "hostile.pickle")


def laughs(depth: int) -> bytes:
    """A list of ten references to a list of ten references to ..."""
    out = b"]q\x00"
    for level in range(depth):
        out += b"]q" + bytes([level + 1]) + b"(" + b"h" + bytes([level])
        out += (b"h" + bytes([level])) * 9 + b"e"
    return out + b"."


@pytest.mark.parametrize(
    ("bomb", "why"),
    [
        (laughs(12), "far too much"),
        (b"]q\x00h\x00a.", "holds itself"),
        (b"(" * 100_000 + b"t" * 100_000 + b".", "nests too deeply"),
        (b"]" * 4_000_000 + b".", "more memory"),
        (b"\x8e" + b"\xff" * 8 + b".", "ends too early"),
        (b"I" + b"9" * 100_000 + b"\n.", "number that is too long"),
        (b"\x8b\x00\x10\x00\x00" + b"\x01" * 4096 + b".", "number that is too long"),
        (b"B\x00\x00\x20\x00" + bytes(2 << 20) + b"q\x001" + b"h\x00" * 10, "missing"),
        (b"}" + b"((K\x01tK\x01u.", "bare tuple"),
    ],
)
def test_a_bomb_is_refused_before_it_swells(tmp_path: Path, bomb: bytes, why: str) -> None:
    (tmp_path / "bomb.pickle").write_bytes(bomb)
    with pytest.raises(FewgraftError, match=why):
        load_plain_pickle(tmp_path / "bomb.pickle")


def test_shared_bytes_are_copied_once(tmp_path: Path) -> None:
    """A hundred thousand references to a megabyte are one megabyte."""
    packed = b"B\x00\x00\x10\x00" + bytes(1 << 20) + b"q\x000](" + b"h\x00" * 100_000 + b"e."
    loaded = interpret(memoryview(packed))
    assert len(loaded) == 100_000
    assert all(item is loaded[0] for item in loaded)


def test_a_little_fuzzing_finds_nothing(tmp_path: Path) -> None:
    trial = Trial(tmp_path, scale=0, random=random.Random(0))
    hostile_pickles(trial)
    assert trial.tried == 2000
    assert not trial.failures


def test_the_fuzzer_knows_what_is_not_plain() -> None:
    assert not not_plain({"a": [1, (b"x",)], "b": interpret(memoryview(PYTHON_2))})
    assert not_plain([np.array([object()])])
    assert not_plain({"a": os.system})


# --- files that share, collide or swell ---


def _number(value: int) -> bytes:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


@pytest.mark.parametrize(
    "program",
    [
        b"}(" + b"".join(_number(k * (2**61 - 1)) + b"N" for k in range(60_000)) + b"u.",
        b"\x8f(" + b"".join(_number(k * (2**61 - 1)) for k in range(60_000)) + b"\x90.",
        b"N" + b"".join(b"p%d\n" % (k * (2**61 - 1)) for k in range(60_000)) + b".",
    ],
    ids=["keys", "members", "places"],
)
def test_numbers_of_one_hash_are_refused(tmp_path: Path, program: bytes) -> None:
    path = tmp_path / "x.pickle"
    path.write_bytes(program)
    with pytest.raises(FewgraftError, match=r"large number as a key|impossible way"):
        load_plain_pickle(path)


def test_arrays_that_share_their_bytes_are_counted(tmp_path: Path) -> None:
    size = 4_000_000
    blob = b"\x8e" + size.to_bytes(8, "little") + b"\x01" * size + b"q\x000"
    names = b"cnumpy\ndtype\n(U\x02b1tRq\x010cnumpy.core.numeric\n_frombuffer\nq\x020"
    array = b"h\x02(h\x00h\x01" + _number(size) + b"\x85U\x01CtR"
    path = tmp_path / "x.pickle"
    path.write_bytes(blob + names + b"](" + array * 100 + b"e.")
    with pytest.raises(FewgraftError, match="describes far too much"):
        load_plain_pickle(path)
