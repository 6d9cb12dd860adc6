"""Every setting is read from the first of its names that is set, and refused with one sentence."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path
from unittest.mock import Mock

import pytest

from sm.commands.show_settings import table
from sm.errors import StartError
from sm.hardware import cores
from sm.settings import Settings, find_misspelled, help_texts, names_of, user_cache

FIELDS = fields(Settings)


def test_every_setting_has_a_help_text_and_names_of_its_own() -> None:
    helps, names = help_texts(), [name for field in FIELDS for name in field.metadata["names"]]
    assert [field.name for field in FIELDS if not field.metadata["names"] or not helps[field.name]] == []
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("SAGEMAKER_BIND_TO_PORT", "eighty 0 65536"),
        ("SAGEMAKER_MODEL_SERVER_TIMEOUT", "nan inf"),
        ("MODEL_SERVER_WORKERS", "-1"),
        ("SAGEMAKER_SAFE_PORT_RANGE", "9100-9000 9000"),
        ("SAGEMAKER_BATCH", "perhaps"),
        ("SAGEMAKER_TRITON_ADDITIONAL_ARGS", "'--a"),
        ("TRIREME_CAPTURE", "captures s3://"),
        ("TRIREME_CAPTURE_PERCENT", "101 10,resnet=some"),
        ("TRIREME_NGINX", "apache"),
        ("TRIREME_RESPONSE_CACHE_MB", "64MB"),
    ],
)
def test_the_error_for_an_invalid_value_names_variable_and_value(name: str, values: str) -> None:
    for value in values.split():
        with pytest.raises(StartError) as caught:
            Settings.read({name: value})
        assert str(caught.value).startswith(f"{name}={value!r} ")
        assert "\n" not in str(caught.value)


def test_the_more_specific_name_wins() -> None:
    names = names_of("timeout")
    environment: dict[str, str] = {}
    for seconds, name in enumerate(reversed(names), 1):
        environment[name] = str(seconds)
        assert Settings.read(environment).timeout == seconds


@pytest.mark.parametrize(
    "opened", [{}, {"TRIREME_TRITON_PORTS": "all", "SAGEMAKER_TRITON_HTTP_PORT": "9001"}]
)
def test_the_error_for_a_port_outside_the_safe_range_names_both_variables(opened: dict[str, str]) -> None:
    environment = {"SAGEMAKER_SAFE_PORT_RANGE": "9000-9100", "SAGEMAKER_TRITON_GRPC_PORT": "8001"}
    # 8001 is the default of a port that is opened.
    given = environment if not opened else {**opened, "SAGEMAKER_SAFE_PORT_RANGE": "9000-9100"}
    with pytest.raises(StartError) as caught:
        Settings.read(given)
    assert all(f"{name}={value}" in str(caught.value) for name, value in environment.items())


def test_the_body_limit_in_bytes_wins_over_the_one_in_megabytes() -> None:
    assert Settings.read({}).max_body == 25 * 2**20
    assert Settings.read({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "6"}).max_body == 6 * 2**20
    environment = {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "6", "SAGEMAKER_MAX_REQUEST_SIZE": "1000"}
    assert Settings.read(environment).max_body == 1000


def test_a_misspelled_setting_is_reported_with_the_right_name_and_other_programs_variables_are_not() -> None:
    # Kubernetes sets the first three beside a service called trireme.
    names = ("TRIREME_PORT", "TRIREME_SERVICE_PORT", "TRIREME_PORT_8080_TCP", "TRIREME_GATEWAY_TLS_KEY")
    assert find_misspelled(dict.fromkeys((*names, "SAGEMAKER_REGION", "TRIREME_QUEUE"), "1")) == []
    (sentence,) = find_misspelled({"TRIREME_LOGFORMAT": "1"})
    assert "TRIREME_LOG_FORMAT" in sentence


def test_a_user_without_a_home_has_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "triton-server"))
    assert user_cache() == tmp_path / "home" / "triton-server" / ".cache"
    access = Mock(return_value=False)
    monkeypatch.setattr("os.access", access)  # the tests may run as root, who may write everywhere
    assert user_cache() == Path(tempfile.gettempdir()) / ".cache"
    assert [call.args[0] for call in access.call_args_list] == [tmp_path]


def test_the_cache_may_be_below_a_home_of_a_known_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Settings.read({"TRIREME_CACHE": "~/models"}).cache == tmp_path / "models"
    assert Settings.read({"TRIREME_CACHE": "here"}).cache == tmp_path / "here"
    with pytest.raises(StartError, match="TRIREME_CACHE='~nobody-here/models'"):
        Settings.read({"TRIREME_CACHE": "~nobody-here/models"})


CACHE = {"TRIREME_RESPONSE_CACHE_MB": "8"}
OWN_CACHE = {"SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--cache-config=local,size=9"}


@pytest.mark.parametrize(
    "environment",
    [
        {**CACHE, "SAGEMAKER_MULTI_MODEL": "true"},
        {**CACHE, "TRIREME_MODELS": "on-demand"},
        {**OWN_CACHE, "SAGEMAKER_MULTI_MODEL": "true"},
        {**OWN_CACHE, **CACHE},
    ],
)
def test_a_response_cache_that_could_answer_wrongly_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(StartError):
        Settings.read(environment)


def test_an_empty_value_counts_as_not_set_and_folders_are_separated_by_colons() -> None:
    empty = dict.fromkeys(("SAGEMAKER_BIND_TO_PORT", "SAGEMAKER_MODEL_SERVER_WORKERS"), "")
    settings = Settings.read({**empty, "TRIREME_CLIENTS": "/a:/b"})
    assert (settings.port, settings.worker_count) == (8080, cores())
    assert settings.clients == (Path("/a"), Path("/b"))


def test_the_table_shows_where_a_value_came_from() -> None:
    rows = {row["name"].split()[0]: row for row in table({"MODEL_SERVER_WORKERS": "3"})}
    assert len(rows) == len(FIELDS)
    workers, port = rows["SAGEMAKER_MODEL_SERVER_WORKERS"], rows["SAGEMAKER_BIND_TO_PORT"]
    assert (workers["value"], workers["source"]) == ("3", "MODEL_SERVER_WORKERS")
    assert (port["value"], port["source"]) == ("8080", "default")
