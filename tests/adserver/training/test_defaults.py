"""What quickstart chooses where a project says nothing: its network, its rounds and its learning rate."""

from dataclasses import replace

import pytest

from adserver.training.defaults import (
    CLIP_OF_RARE,
    Network,
    choose_learning_rate,
    choose_network,
    choose_rounds,
    should_calibrate,
)


@pytest.mark.parametrize(
    ("rows", "columns", "hidden", "are_numbers_in_tables"),
    [
        (455, 30, (), False),  # WBCD
        (9_864, 17, (), True),  # online shoppers
        (26_049, 14, (), True),  # Adult
        (60_000, 784, (64,), False),  # MNIST
        (1_000, 784, (), False),
    ],
)
def test_small_data_get_a_linear_model_large_tables_of_numbers_and_pixels_a_hidden_layer(
    rows: int, columns: int, hidden: tuple[int, ...], are_numbers_in_tables: bool
) -> None:
    chosen = choose_network(rows=rows, epsilon=3.0, columns=columns)
    assert chosen == Network(
        hidden=hidden, are_numbers_in_tables=are_numbers_in_tables, is_wide=columns == 784
    )


@pytest.mark.parametrize(
    ("rows", "epsilon", "parameters", "is_linear", "rate"),
    [
        (455, 3.0, 31, True, 0.5),
        (455, 1.0, 31, True, 0.33),
        (9_864, 3.0, 34_970, True, 0.9),
        (26_049, 3.0, 13_500, True, 7.9),
        (60_000, 3.0, 50_890, False, 2.0),
        (10_000_000, 8.0, 100, True, 8.0),
        (200, 0.1, 100_000, True, 0.1),
    ],
)
def test_the_rate_follows_the_signal_of_a_round(
    rows: int, epsilon: float, parameters: int, is_linear: bool, rate: float
) -> None:
    network = Network(hidden=() if is_linear else (64,), are_numbers_in_tables=is_linear)
    found = choose_learning_rate(rows=rows, epsilon=epsilon, parameters=parameters, network=network)
    assert found == rate


def test_steps_grow_with_the_bound_of_several_heads() -> None:
    network = Network(hidden=(), are_numbers_in_tables=True)
    rates = [
        choose_learning_rate(rows=26_049, epsilon=3.0, parameters=13_500, network=network, heads=heads)
        for heads in (1, 2, 4)
    ]
    assert rates == [7.9, 11.0, 16.0]


def test_a_rare_label_gets_a_bound_that_holds_its_gradients() -> None:
    network = choose_network(rows=20_000, epsilon=3.0, columns=14, rarest=0.01)
    assert network == Network(hidden=(), are_numbers_in_tables=False, clip_norm=CLIP_OF_RARE)
    assert choose_learning_rate(rows=20_000, epsilon=3.0, parameters=970, network=network) == 4.0


@pytest.mark.parametrize(
    ("rows", "rate"), [(300, 0.1), (3_200, 0.48), (3_400, 0.51), (8_000, 1.2), (20_000, 3.0), (10**6, 4.0)]
)
def test_steps_of_a_network_of_ones_own_grow_with_rows_times_epsilon(rows: int, rate: float) -> None:
    assert choose_learning_rate(rows=rows, epsilon=3.0, parameters=300, network=None) == rate


@pytest.mark.parametrize(
    ("rows", "epsilon", "has_hidden_layer", "has_tables", "rounds"),
    [
        (7_999, 2.0, True, False, 120),
        (8_000, 2.0, True, False, 300),
        (8_000, 1.9, True, False, 120),
        (16_000, 1.0, True, False, 300),
        (10**6, 3.0, False, False, 120),
        (10**6, 3.0, True, True, 120),
    ],
)
def test_a_hidden_layer_of_ones_own_without_tables_has_more_rounds_of_many_rows_times_epsilon(
    rows: int, epsilon: float, has_hidden_layer: bool, has_tables: bool, rounds: int
) -> None:
    found = choose_rounds(
        rows=rows, epsilon=epsilon, has_hidden_layer=has_hidden_layer, has_tables=has_tables
    )
    assert found == rounds


@pytest.mark.parametrize(("hidden", "rate"), [((64,), 4.0), ((64, 32), 2.0), ((16,), 2.0)])
def test_the_default_layer_over_pixels_takes_longer_steps_than_layers_of_ones_own(
    hidden: tuple[int, ...], rate: float
) -> None:
    network = replace(choose_network(rows=48_000, epsilon=3.0, columns=784), hidden=hidden)
    found = choose_learning_rate(rows=48_000, epsilon=3.0, parameters=50_890, network=network)
    assert found == rate


@pytest.mark.parametrize(
    ("examples", "base_rate", "mean_over_rate", "is_worth_it"),
    [
        (1_100, 0.1, 0.99, True),
        (1_100, 0.9, 0.99, True),
        (100, 0.1, 0.6, True),
        (100, 0.1, 0.8, False),
        (100, 0.9, 0.9, True),
        (900, 0.1, 1.05, False),
        (900, 0.9, 1.005, False),
        (100, 0.1, float("nan"), True),
    ],
)
def test_a_small_panel_calibrates_only_what_is_off_by_more_than_chance(
    examples: int, base_rate: float, mean_over_rate: float, is_worth_it: bool
) -> None:
    found = should_calibrate(examples=examples, base_rate=base_rate, mean_over_rate=mean_over_rate)
    assert found is is_worth_it
