"""The alarm's rule: which events each sequence of PertAlign values causes."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sora import Guard


def events(guard: Guard, values: list[float]) -> list[tuple[int, str]]:
    """Every event but "ok", with the update's number."""
    updates = [(number, guard.update(value)) for number, value in enumerate(values, start=1)]
    return [(number, event) for number, event in updates if event != "ok"]


LATE = math.ceil(math.log(0.30 / 0.8, 0.8))  # updates until 0.8 * 0.8^k < 0.30


class TestRule:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            pytest.param([0.0] * 60, [(41, "alarm")], id="no alarm in the first updates, then at once"),
            # 0.24 at update 41, over 0.40 from update 71 on
            pytest.param([0.006 * step for step in range(130)], [], id="a slow start gets time to climb"),
            pytest.param([0.25] * 150, [(101, "alarm")], id="but not forever"),
            pytest.param([0.19] * 150, [(41, "alarm")], id="and not if it is too low"),
            pytest.param([0.0] * 5 + [0.8] * 500, [], id="a healthy run raises none"),
            pytest.param([0.8] * 100 + [0.0] * 50, [(100 + LATE, "alarm")], id="a collapse"),
            pytest.param([0.8] * 60 + [0.35] * 200, [], id="no flicker under clear and over start"),
            pytest.param(
                [0.8] * 50 + [0.0] * 30 + [0.8] * 60 + [0.0] * 30,
                [(50 + LATE, "alarm"), (85, "recovered"), (140 + LATE, "alarm")],
                id="recovery and a second collapse",
            ),
            pytest.param(
                [0.0] * 41 + [1.0] * 60, [(41, "alarm"), (61, "recovered")], id="an alarm lasts 20 updates"
            ),
        ],
    )
    def test_events_of_a_sequence(self, values: list[float], expected: list[tuple[int, str]]) -> None:
        assert events(Guard(), values) == expected

    def test_nan_is_ignored(self) -> None:
        one, other = Guard(), Guard()
        values = [0.8] * 50 + [0.0] * 40
        events(one, values)
        events(other, [v for value in values for v in (value, math.nan)])
        assert one == other

    def test_extreme_thresholds(self) -> None:
        assert events(Guard(start=-2, clear=-1.5), [-1.0] * 200) == []
        assert events(Guard(start=1.1, clear=1.2, silent=1, early=0), [1.0] * 200) == [(2, "alarm")]

    def test_healthy_only_past_the_silence_and_above_the_clear_threshold(self) -> None:
        guard = Guard()
        events(guard, [0.9] * 39)
        assert not guard.healthy
        guard.update(0.9)
        assert guard.healthy
        assert guard.was_healthy
        events(guard, [0.35] * 30)
        assert not guard.alarmed
        assert not guard.healthy
        assert guard.was_healthy

    @given(st.lists(st.floats(-1, 1) | st.just(math.nan), max_size=200), st.integers(0, 200))
    def test_a_copy_by_state_dict_continues_alike(self, values: list[float], cut: int) -> None:
        one, other = Guard(), Guard()
        events(one, values[:cut])
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert events(one, values[cut:]) == events(other, values[cut:])

    @given(st.lists(st.floats(-1, 1), min_size=1, max_size=300))
    def test_events_alternate_and_never_come_in_the_first_updates(self, values: list[float]) -> None:
        found = events(Guard(), values)
        assert all(number > 40 for number, _ in found)
        assert [event for _, event in found] == (["alarm", "recovered"] * len(found))[: len(found)]

    def test_a_value_may_stand_for_several_updates(self) -> None:
        one, other = Guard(), Guard()
        for value in (0.8, 0.7, 0.1, 0.0):
            other.update(value, steps=10)
            for _ in range(10):
                one.update(value)
        assert other.average == pytest.approx(one.average)
        assert (other.seen, other.alarmed, other.was_healthy) == (one.seen, one.alarmed, one.was_healthy)


class TestSecondLook:
    def updates(self, guard: Guard, values: list[float], look: float) -> list[str]:
        return [guard.update(value, look=lambda: look) for value in values]

    def test_both_must_be_low(self) -> None:
        falling = [0.8] * 60 + [0.2] * 20
        late = math.ceil(math.log(0.25 / 0.6, 0.8))  # updates until 0.2 + 0.6 * 0.8^k < 0.45
        assert self.updates(Guard(), falling, 0.3).index("alarm") == 59 + late
        assert "alarm" not in self.updates(Guard(), falling, 0.6)
        assert "alarm" not in self.updates(Guard(), [0.8] * 80, 0.3)
        assert "alarm" not in self.updates(Guard(), falling, math.nan)

    def test_it_is_taken_only_if_the_alarm_depends_on_it(self) -> None:
        taken = []
        guard = Guard()

        def look() -> float:
            taken.append(guard.seen)
            return 0.3

        for value in [0.0] * 45 + [0.9] * 40 + [0.0] * 10:
            guard.update(value, look=look)
        assert taken == [41, 89]  # after the silent start, and when the average passes 0.45 again

    def test_a_slow_start_gets_time_to_climb_with_a_look_too(self) -> None:
        assert self.updates(Guard(), [0.25] * 150, 0.2).index("alarm") == 100
        assert self.updates(Guard(), [0.19] * 150, 0.2).index("alarm") == 40
        assert set(self.updates(Guard(), [0.1] * 300, 0.75)) == {"ok"}  # no look confirms it


class TestRatio:
    """With a ratio of accuracies, an alarm needs evidence of a collapse; without it there is a notice."""

    FALLING = [0.8] * 60 + [0.2] * 100

    def events(self, ratio: float, look: float = 0.3) -> list[tuple[int, str]]:
        guard = Guard()
        found = [guard.update(value, look=lambda: look, ratio=lambda: ratio) for value in self.FALLING]
        return [(step, event) for step, event in enumerate(found, start=1) if event != "ok"]

    @pytest.mark.parametrize(
        ("ratio", "look", "expected"),
        [
            (0.34, 0.3, [(63, "alarm")]),  # A is 0.507 there: before the look alone would decide
            (0.35, 0.3, [(64, "notice")]),
            (math.inf, 0.3, [(64, "notice")]),
            (math.nan, 0.3, [(64, "notice")]),
            (0.0, 0.54, [(63, "alarm")]),
            (0.0, 0.55, []),
            (1.0, 0.47, []),
        ],
    )
    def test_the_ratio_decides(self, ratio: float, look: float, expected: list[tuple[int, str]]) -> None:
        assert self.events(ratio, look) == expected

    @pytest.mark.parametrize(("ratio", "gap"), [(0.5, 10), (0.6, 50), (math.inf, 10)])
    def test_it_is_measured_again_later(self, ratio: float, gap: int) -> None:
        guard, asked = Guard(), list[int]()

        def measure() -> float:
            asked.append(guard.seen)
            return ratio

        for value in self.FALLING:
            guard.update(value, look=lambda: 0.3, ratio=measure)
        assert asked == list(range(63, 161, gap))

    def test_one_notice_per_decline(self) -> None:
        guard = Guard()
        values = [0.8] * 60 + [0.2] * 40 + [0.9] * 20 + [0.2] * 40
        found = [guard.update(value, look=lambda: 0.3, ratio=lambda: 1.0) for value in values]
        assert found.count("notice") == 2
        assert "alarm" not in found

    def test_a_state_without_the_newer_fields_is_read(self) -> None:
        state = Guard(average=0.7, seen=50).state_dict()
        guard = Guard(next_ratio=7, noticed=True)
        guard.load_state_dict({key: state[key] for key in state if key not in ("next_ratio", "noticed")})
        assert (guard.average, guard.next_ratio, guard.noticed) == (0.7, 0, False)
