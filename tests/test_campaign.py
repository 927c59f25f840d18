"""A few minutes of the campaign; the whole of it is `make campaign`."""

import pytest

from campaign.__main__ import attacks, run
from campaign.attack import Attack

SCALE = 0.02
BRIEF = [attack for attack in attacks() if attack.brief]


@pytest.mark.slow
@pytest.mark.parametrize("attack", BRIEF, ids=lambda attack: attack.name)
def test_a_little_of_each_attack_finds_nothing(attack: Attack) -> None:
    trial = run(attack, SCALE, seed=1).trial
    assert trial.tried
    assert not trial.failed, "\n".join(trial.failures)
