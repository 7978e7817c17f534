"""Settings classes: what ``dataclass`` generates for each, done by one function for all."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field

import pytest

from kerolox.settings_class import settings_dataclass


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class Basic:
    name: str
    port: int = 9876
    secret: str = field(default="", repr=False)


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class More(Basic):
    folders: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.port < 0:
            raise ValueError("port")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    name: str
    port: int = 9876
    secret: str = field(default="", repr=False)


def test_fields_are_given_by_name_or_have_their_defaults() -> None:
    made = More(name="a", port=1)
    assert (made.name, made.port, made.secret, made.folders) == ("a", 1, "", [])
    assert More(name="b").folders is not More(name="b").folders
    assert not hasattr(made, "__dict__")


def test_what_is_missing_and_what_is_unknown_is_a_type_error_with_its_name() -> None:
    with pytest.raises(TypeError, match=r"More\(\) lacks the argument 'name'"):
        More()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Basic\(\) has no argument 'prot'"):
        Basic(name="a", prot=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Basic("a")  # type: ignore[misc]


def test_the_check_after_the_fields_runs_at_each_making() -> None:
    with pytest.raises(ValueError, match="port"):
        More(name="a", port=-1)
    with pytest.raises(ValueError, match="port"):
        dataclasses.replace(More(name="a"), port=-1)


def test_nothing_can_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Basic(name="a").port = 1  # type: ignore[misc]


def test_equality_hash_and_text_are_those_of_a_dataclass() -> None:
    made, generated = Basic(name="a", secret="s"), Generated(name="a", secret="s")
    assert made == Basic(name="a", secret="s") != Basic(name="a")
    assert hash(made) == hash(generated) == hash(Basic(name="a", secret="s"))
    assert made != generated
    assert made != More(name="a", secret="s")
    assert repr(made) == repr(generated).replace("Generated", "Basic")


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_is_equal(again: object) -> None:
    made = Basic(name="a", port=3)
    assert callable(again)
    assert again(made) == made
    assert dataclasses.asdict(made) == {"name": "a", "port": 3, "secret": ""}


def test_the_signature_has_each_field() -> None:
    generated = inspect.signature(Generated)
    shown = inspect.signature(Basic)
    assert list(shown.parameters.values()) == list(generated.parameters.values())
    assert "folders" in inspect.signature(More).parameters
