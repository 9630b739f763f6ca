"""The files in `ops/`: their tools accept them, and every command, option, setting and variable they name exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from strandline.cli.app import app
from strandline.config_keys import OTHER_VARIABLES, VARIABLES

OPS = Path(__file__).parents[2] / "ops"
CHART = OPS / "helm" / "strandline"
FILES = [path for path in sorted(OPS.rglob("*")) if path.is_file()]
COMPOSE: dict[str, Any] = yaml.safe_load((OPS / "docker" / "compose.yaml").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def unknown_variables(text: str) -> set[str]:
    """Names of settings in the environment that nobody reads."""
    return set(re.findall(r"STRAND_[A-Z0-9_]+", text)) - set(VARIABLES) - set(OTHER_VARIABLES)


def unknown_words(words: list[str]) -> list[str]:
    """What of a `strand` command line does not exist: the command, or an option of it."""
    command: Any = get_command(app)
    found = []
    for word in words:
        if word.startswith("--"):
            options = {name for parameter in command.params for name in parameter.opts}
            found += [word] if word not in options else []
        elif getattr(command, "commands", None):
            if word not in command.commands:
                return [*found, word]
            command = command.commands[word]
    return found


def lines() -> list[list[str]]:
    """Every command line of `strand` in these files: lists after its entry point, and shell commands."""
    lists = [service["command"] for service in COMPOSE["services"].values() if service.get("image") == "strandline"]
    found = [words for words in lists if len(words) > 1 or words[0] in ("up", "serve", "worker")]
    for path in FILES:
        text = path.read_text()
        found += [json.loads(match) for match in re.findall(r"(?:args:|CMD) (\[.*\])", text)]
        shell = re.findall(r"(?:\|\| |- |RUN |^)strand ([a-z][^|\n]*)", text, re.MULTILINE)
        found += [[word for word in line.split() if re.fullmatch(r"-*[a-z-]+", word)] for line in shell]
    return found


def test_every_variable_exists() -> None:
    assert {
        path.name: unknown_variables(path.read_text()) for path in FILES if unknown_variables(path.read_text())
    } == {}
    assert unknown_variables("STRAND_WORKER_METRIX: 1") == {"STRAND_WORKER_METRIX"}


def test_every_command_and_option_exists() -> None:
    found = lines()
    assert {line[0] for line in found} >= {"up", "serve", "worker", "init", "setup"}
    assert [line for line in found if unknown_words(line)] == []
    assert unknown_words(["serve", "--liste", "x"]) == ["--liste"]
    assert unknown_words(["serv"]) == ["serv"]


def test_the_dockerfile_has_nothing_that_hadolint_minds() -> None:
    tool = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [str(tool), str(OPS / "docker" / "Dockerfile")], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_dockerfile_copies_is_there() -> None:
    text = (OPS / "docker" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (OPS.parent / source).exists(), source


def test_the_image_has_every_dependency_locked() -> None:
    """`make lock` writes what the image installs too; a package that was added without it would be missing there."""
    project = tomllib.loads((OPS.parent / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["otel"]]
    locked = set(re.findall(r"^([\w-]+)(?:\[[^]]*\])?==", (OPS.parent / "locks" / "run.txt").read_text(), re.MULTILINE))
    names = {re.split(r"[\[<>=~! ]", one, maxsplit=1)[0].lower() for one in wanted}
    assert names - locked == set()


def test_the_image_is_made_of_what_is_pinned() -> None:
    """Every package is compared with its hash, and the base image can be named by its digest."""
    text = (OPS / "docker" / "Dockerfile").read_text()
    installs = re.findall(r"pip install [^\n\\]*", text)
    assert len(installs) == 3
    assert [
        line for line in installs if "--require-hashes" not in line and not line.endswith("--no-build-isolation .")
    ] == []
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "${BASE}"]
    for name in re.findall(r"-r (locks/\S+)", text):
        packages = re.findall(r"^[\w-]+(?:\[[^]]*\])?==.*$", (OPS.parent / name).read_text(), re.MULTILINE)
        assert packages and (OPS.parent / name).read_text().count("--hash=sha256:") >= len(packages)


def test_secrets_of_the_chart_are_in_secrets() -> None:
    """A section of a sink may have a token in it, and everybody who sees a namespace reads its ConfigMaps."""
    assert not any("ConfigMap" in path.read_text() for path in (CHART / "templates").iterdir())
    assert "kind: Secret" in (CHART / "templates" / "config.yaml").read_text()
    assert VALUES["metrics"]["access"] == "token"


def test_compose_refers_only_to_what_it_declares() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        mounted = {volume.split(":")[0] for volume in service.get("volumes", [])}
        assert mounted <= set(COMPOSE["volumes"]), name
    assert services["worker"]["deploy"]["replicas"] == 2
    assert {"postgres", "s3", "server", "worker"} <= set(services)


def test_every_value_that_the_chart_reads_is_in_its_values() -> None:
    for path in sorted((CHART / "templates").iterdir()):
        for name in re.findall(r"\$?\.Values\.([\w.]+)", path.read_text()):
            place: Any = VALUES
            for part in name.split("."):
                assert part in place, f"{path.name} reads {name}"
                place = place[part]


def test_helm_and_kubernetes_accept_the_chart() -> None:
    """Where helm is on the path: linted, rendered with everything switched on.

    And checked against the API's schemas.
    """
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("there is no helm here")
    given = ["--set", "lake.warehouse=s3://b/p,server.ingress.enabled=true,server.ingress.host=h"]
    given += ["--set", "lake.s3.credentialsSecret=c,lake.s3.endpoint=http://s,otlpEndpoint=http://o"]
    subprocess.run([helm, "lint", "--strict", str(CHART), *given], check=True, capture_output=True, timeout=60)
    rendered = subprocess.run(
        [helm, "template", "x", str(CHART), "--kube-version", "1.33.0", *given],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    import kubernetes_validate

    documents = [one for one in yaml.safe_load_all(rendered) if one]
    assert len(documents) == 7
    for document in documents:
        kubernetes_validate.validate(document, "1.33", strict=True)
