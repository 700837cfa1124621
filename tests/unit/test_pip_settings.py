"""pip's settings, as uv has them."""

from __future__ import annotations

import pytest
from pip_settings import of_uv


@pytest.fixture(autouse=True)
def no_uv_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_INDEX_STRATEGY",
        "UV_FIND_LINKS",
        "SSL_CERT_FILE",
        "UV_HTTP_TIMEOUT",
    ):
        monkeypatch.delenv(name, raising=False)


def test_several_sources_are_separated_as_uv_wants_it() -> None:
    said = ["global.extra-index-url='file:///a file:///b'\n", "global.find-links='\\n/wheels\\n/more'\n"]
    assert of_uv(said) == {
        "UV_INDEX": "file:///a file:///b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
    }


def test_the_environment_comes_last_and_wins() -> None:
    said = [":env:.cert='/of/the/environment'\n", "global.cert='/of/a/file'\n", "install.cert='/of/its/section'\n"]
    assert of_uv(said) == {"SSL_CERT_FILE": "/of/the/environment"}
    assert of_uv(list(reversed(said))[:2]) == {"SSL_CERT_FILE": "/of/its/section"}


def test_what_uv_was_told_itself_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", "/own")
    assert of_uv(["global.find-links='/pip'\n"]) == {}


def test_settings_of_other_commands_and_other_matters_are_left() -> None:
    assert of_uv(["freeze.timeout='10'\n", "global.no-color='true'\n"]) == {}
