"""The demo's stages on a few thousand flights, in the tests' own Spark session."""

import asyncio
import csv
import io
import json

import pytest

from kerolox.demo import analysis
from kerolox.demo.flights import flight_messages, load_flights, total_distance
from kerolox.demo.flow import flow
from kerolox.demo.report import Progress, Proof
from kerolox.demo.run import Servers, main

FLIGHTS = 3000


@pytest.fixture(scope="module")
def flights():
    return load_flights(FLIGHTS)


def test_every_flight_is_a_message_with_a_key_of_its_own(flights):
    messages = list(flight_messages("t", flights))
    assert len({message.keys for message in messages}) == len(messages) == FLIGHTS
    first = messages[0]
    assert (first.tags, first.keys) == ("UA", "2013-01-01-UA1545-EWR")
    assert json.loads(first.body)["dep_delay"] == 2
    never_left = [json.loads(each.body) for each in messages if b"dep_time" not in each.body]
    assert all("dep_delay" not in each for each in never_left)


def test_the_stages_agree_on_every_count(spark, flights, tmp_path):
    progress = Progress(io.StringIO())
    with Servers(tmp_path) as servers:
        messages = flight_messages("Flights", flights)
        counts = asyncio.run(flow(servers.name_server, "Flights", messages, FLIGHTS, progress))
        analysis.stream_to_parquet(
            spark, servers.name_server, "Flights", tmp_path, FLIGHTS, progress
        )
        tagged = analysis.count_tag(spark, servers.name_server, "Flights", "UA")
    assert counts.acknowledged == counts.stored == FLIGHTS
    assert counts.deliveries.total() == len(counts.deliveries) == FLIGHTS
    assert all(counts.by_consumer)
    table = analysis.count_table(spark, tmp_path, "UA")
    assert table == (FLIGHTS, FLIGHTS, FLIGHTS, total_distance(flights), tagged)
    found = analysis.delays(spark, tmp_path)
    assert found[0].mean_delay == max(each.mean_delay for each in found)
    with (tmp_path / "delays.csv").open() as file:
        assert len(list(csv.reader(file))) == len(found) + 1
    assert analysis.draw(found, tmp_path).read_bytes().startswith(b"\x89PNG")


def test_a_count_that_differs_is_marked_and_fails_the_proof():
    proof = Proof(10)
    proof.add("sent", 10)
    assert proof.is_whole
    proof.add("stored", 9)
    assert not proof.is_whole
    assert "DIFFERS from 10" in proof.lines()[1]


def test_without_java_the_demo_says_how_to_get_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["--output", str(tmp_path / "out")]) == 1
    assert "Spark needs Java 17 or newer; install it" in capsys.readouterr().err
    assert not (tmp_path / "out" / "broker").exists()


def test_without_its_packages_the_demo_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("kerolox.demo.run._PACKAGES", ("pyspark", "no_such_package"))
    assert main(["--output", str(tmp_path)]) == 1
    assert "not installed: no_such_package; pip install" in capsys.readouterr().err
