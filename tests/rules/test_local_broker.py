"""The broker's topics: settings that would make bills wrong are refused with the command that corrects them."""

from __future__ import annotations

from deployment.topics import topic_problems
from laptop.broker import BrokerPorts

GOOD = {
    "events": {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete"},
    "catalog.prices": {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
}


def test_good_settings_have_no_problem() -> None:
    assert topic_problems(GOOD) == []


def test_producer_time_is_refused_on_every_topic() -> None:
    problems = topic_problems(
        {name: {**values, "message.timestamp.type": "CreateTime"} for name, values in GOOD.items()}
    )
    assert len(problems) == 2
    assert "events has message.timestamp.type=CreateTime" in problems[0]
    assert "--alter --topic events" in problems[0]


def test_a_catalog_topic_that_forgets_is_refused() -> None:
    problems = topic_problems({**GOOD, "catalog.prices": {**GOOD["catalog.prices"], "cleanup.policy": "delete"}})
    assert len(problems) == 1
    assert "catalog.prices has cleanup.policy=delete" in problems[0]


def test_clients_get_the_advertised_address_of_the_broker() -> None:
    assert BrokerPorts(9092, 9093).bootstrap == "127.0.0.1:9092"
    assert BrokerPorts(9092, 9093, "0.0.0.0", "kafka:9092").bootstrap == "kafka:9092"
