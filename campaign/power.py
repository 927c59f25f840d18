"""Power that fails after any call of a writer: the old content is left or the new, never a part."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from campaign.attack import Attack, Trial
from campaign.power_disk import Disk, Tree, traced, write_tree
from fewgraft.app.features.cache import FeatureCache
from fewgraft.app.learning.saving import open_classifier
from fewgraft.bench.results import Results
from fewgraft.data.catalogue import open_data
from fewgraft.data.store import verify_store
from fewgraft.model import load_model, weights_hash
from fewgraft.training.checkpoint import checkpoint_run

_MODEL = """
from fewgraft.model import new_model, save_model
def model(seed):
    return new_model("conv4", ("a", "b"), 16, 1, (0.5,), (0.25,), seed)
"""
_STORE = """
import numpy as np
from fewgraft.data.build import Item, Source, build_store
from fewgraft.data.parts import Part
def source(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 6, 6, 3), dtype=np.uint8)
    homes = [(0, Part.BASE_TRAIN), (0, Part.BASE_TEST), (1, Part.NOVEL_VAL), (2, Part.NOVEL_TEST)]
    items = [Item(p, *homes[i % 4], str(i)) for i, p in enumerate(pixels)]
    return Source("made up", root, ["a", "b", "c"], items, 12, 6)
"""
_ROW = """
from fewgraft.zoo import models_folder
from fewgraft.bench.results import Results
from fewgraft.bench.runner import Bench, Job
from fewgraft.bench.rows import in_this_process, run_job
from fewgraft.episodes import EpisodeSettings
settings = EpisodeSettings.paper("fsl", 1)
job = Job("icons", "icons", "nearest-prototype", {}, settings, 2, models_folder("icons"))
results, bench = Results(root / "results"), Bench()
scores = run_job(job, "", results, bench, in_this_process)
row = bench.row(job, scores, 1.0, 1).model_copy(update={"id": str(turn) * 10})
results.append(row, scores)
"""


@dataclass(frozen=True)
class Writer:
    """A writer by what it runs, first for the old content and then for the new, and its reader."""

    name: str
    code: str  # begins with `root` and `turn`, which is 0 for the old and 1 for the new
    read: Callable[[Path], object]  # what a reader finds; raises if that is not whole

    def script(self, turn: int) -> str:
        """As a whole program."""
        return f"import sys\nfrom pathlib import Path\nroot, turn = Path(sys.argv[1]), {turn}\n" + (
            self.code
        )


def _rows(root: Path) -> object:
    results = Results(root / "results")
    rows = results.rows()
    for row in rows:
        results.scores(row)
    return [row.id for row in rows]


def _store(root: Path) -> object:
    store = open_data("s", root)
    verify_store(store)
    return store.manifest.content


def _model(root: Path) -> object:
    return weights_hash(load_model(root / "m"))


def _version(root: Path) -> object:
    path = root / "versions" / "current.json"
    name = json.loads(path.read_bytes())["current"] if path.exists() else "original"
    if name != "original":
        open_classifier(root / "versions" / name)
    return name


def _features(root: Path) -> object:
    cache = FeatureCache(root / "c", 4)
    return [bytes([n]) * 16 in cache and cache[bytes([n]) * 16].tolist() for n in range(2)]


WRITERS = (
    Writer(
        "file",
        "from fewgraft.files import write_atomically\n"
        "write_atomically(root / 'deep' / 'f', (b'old', b'new!!')[turn] * 4000)",
        lambda root: (root / "deep" / "f").read_bytes(),
    ),
    Writer(
        "folder",
        "from fewgraft.files import replacing_folder\n"
        "with replacing_folder(root / 'deep' / 'f') as work:\n"
        "    (work / 'below').mkdir()\n"
        "    for name in ('a', 'below/b'):\n"
        "        (work / name).write_text(str(turn) * 3000)\n",
        lambda root: [(root / "deep" / "f" / name).read_text() for name in ("a", "below/b")],
    ),
    Writer("model", f"{_MODEL}save_model(model(turn), root / 'm', beside={{'n': b'x'}})", _model),
    Writer("store", f"{_STORE}build_store(source(turn), root / 's', 's')", _store),
    Writer(
        "checkpoint",
        f"{_MODEL}import torch\n"
        "from fewgraft.training.checkpoint import Progress, save_checkpoint\n"
        "net = model(turn)\n"
        "sgd = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "save_checkpoint(root / 'c', Progress(str(turn)), net, sgd, model(turn).state_dict())",
        lambda root: checkpoint_run(root / "c"),
    ),
    Writer(
        "results",
        _ROW,
        _rows,
    ),
    Writer(
        "features",
        "import numpy as np\nfrom fewgraft.app.features.cache import FeatureCache\n"
        "cache = FeatureCache(root / 'c', 4)\n"
        "cache.put({bytes([turn]) * 16: np.full(4, turn, np.float32)})\ncache.flush()",
        _features,
    ),
    Writer(
        "version",
        f"{_MODEL}from fewgraft.app.server.versions import Versions\n"
        "if turn == 0: save_model(model(0), root / 'base')\n"
        "versions = Versions(str(root / 'base'), root / 'versions')\n"
        "learnt = versions.pending('1')\n"
        "save_model(model(turn), learnt)\n"
        "versions.keep(learnt, versions.serving.name)\nversions.close()",
        _version,
    ),
)


def _fail_everywhere(trial: Trial, writer: Writer) -> None:
    """Nothing, then the old content, then the new: power fails after each call of both turns."""
    root, home = trial.folder / f"{writer.name} disk", trial.folder / "home"
    root.mkdir()
    there = _found(writer, root)
    for turn in range(2):
        before, disk = there, Disk(root)
        calls = traced(writer.script(turn), root, home)
        there = _found(writer, root)
        trial.check(before != there, f"{writer.name}: a reader finds no difference")
        look = _looker(writer, trial.folder / "left")
        for number, call in enumerate(calls):
            if not disk.apply(*call):
                continue
            for tree in disk.remains():
                told = look(tree)
                what = f"{writer.name} {turn}: call {number} ({call[0]}), then {told}"
                trial.check(told in (before, there), what)
        told = look(next(disk.remains()))
        trial.check(told == there, f"{writer.name} {turn}: it was done, then {told}")


def _found(writer: Writer, root: Path) -> str:
    """What a reader says, whatever that is."""
    try:
        return repr(writer.read(root))
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace(str(root), "ROOT")


def _looker(writer: Writer, where: Path) -> Callable[[Tree], str]:
    """What a reader says of a tree; the same tree is read once."""
    seen: dict[str, str] = {}

    def look(tree: Tree) -> str:
        key = hashlib.sha256(repr(sorted(tree.items())).encode()).hexdigest()
        if key not in seen:
            write_tree(tree, where)
            seen[key] = _found(writer, where)
            shutil.rmtree(where)
        return seen[key]

    return look


def _attack(trial: Trial) -> None:
    chosen = list(WRITERS)
    trial.random.shuffle(chosen)
    for number in trial.rounds(len(WRITERS), "power failures"):
        _fail_everywhere(trial, chosen[number])


ATTACKS = (
    Attack(
        "power failure",
        "the old content or the new, whatever of the unsynced is lost, after each call of a writer",
        _attack,
    ),
)
