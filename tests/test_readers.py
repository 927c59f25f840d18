"""Every reader gives a result or a `FewgraftError`, whatever is in its files."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaign.kinds import READERS, Reader
from campaign.readers import ATTACKS, COMMANDS, Damage, why_not_clean

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
