"""Prints pip's settings as those of uv: reads what `pip config list` says, and prints lines of shell.

A variable UV_* that is set already is left as it is.
"""

import ast
import os
import shlex
import sys

WORDS = {  # of pip, and what uv calls it, and what uv puts between several
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}


def of_uv(lines: list[str]) -> dict[str, str]:
    """Among files the section [install] wins, and a variable of the environment wins over both, as with pip; pip lists
    them by name.
    """
    found = {}
    for line in sorted(lines, key=lambda line: (line.startswith(":env:."), line.startswith("install."))):
        name, _, quoted = line.strip().partition("=")
        word = name.rpartition(".")[2].replace("_", "-")
        if name.startswith(("global.", "install.", ":env:.")) and word in WORDS:
            variable, between = WORDS[word]
            found[variable] = between.join(ast.literal_eval(quoted).split())
    if "UV_INDEX" in found:  # pip looks into all of them for the best version; uv into the first that has the package
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {variable: value for variable, value in found.items() if variable not in os.environ}


if __name__ == "__main__":
    for variable, value in of_uv(sys.stdin.readlines()).items():
        print(f"export {variable}={shlex.quote(value)}")
