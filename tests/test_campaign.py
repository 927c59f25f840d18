"""A few minutes of the campaign; the whole of it is `make campaign`."""

from pathlib import Path

import pytest

from campaign.__main__ import attacks, run, run_all, table
from campaign.attack import Attack, Trial

SCALE = 0.02
BRIEF = [attack for attack in attacks() if attack.brief]


@pytest.mark.slow
@pytest.mark.parametrize("attack", BRIEF, ids=lambda attack: attack.name)
def test_a_little_of_each_attack_finds_nothing(attack: Attack) -> None:
    result = run(attack, SCALE, seed=1)
    assert result.tried
    assert not result.failed, result


def test_a_campaign_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    ran: list[str] = []

    def attack(name: str) -> Attack:
        def tried(trial: Trial) -> None:
            ran.append(name)
            trial.check(name != "b", "b fails")

        return Attack(name, "holds", tried)

    named = [attack(name) for name in "abc"]
    first = run_all(named[1:], 1.0, 0, tmp_path / "sub" / "log.jsonl")
    again = run_all(named, 1.0, 0, tmp_path / "sub" / "log.jsonl")
    assert ran == ["b", "c", "a"]
    assert [one.name for one in again] == ["a", "b", "c"]
    assert again[1:] == first
    assert [one.failed for one in again] == [0, 1, 0]
    assert "| b | holds | 1 | 1 |" in table(again)
