"""The files in recipes/ say what the library understands: settings, options and exit codes."""

import ast
import re
from configparser import ConfigParser
from dataclasses import fields
from typing import Any

import pytest
import yaml
from doc_blocks import ROOT
from typer.testing import CliRunner

from durable_shuffle.jobs.cli.app import app, imported
from durable_shuffle.jobs.options import PREFIX, known_keys
from durable_shuffle.recovery.program import FENCED, HOPELESS
from durable_shuffle.shuffle.base.settings import Settings

RECIPES = ROOT / "recipes"
FILES = sorted(path for path in RECIPES.iterdir() if path.is_file())
FINAL = {FENCED, HOPELESS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_settings_and_options_exist(path: Any) -> None:
    """No recipe sets a key or an option that would be refused."""
    text = path.read_text()
    keys = set(re.findall(r"spark\.durableShuffle\.[\w.]+", text))
    assert keys <= set(known_keys())
    assert keys or "DurableShuffle(" in text or ".conf" in text
    options = {o for p in imported("run").params for o in p.opts}
    for call in re.findall(r"durable-shuffle[\s,]+run\s*([^/]*?)\s+--[\s\]]", text):
        assert set(re.findall(r"--[\w-]+", call)) <= options, call


def test_every_recipe_is_named_on_a_page() -> None:
    """A file that no page names is not found."""
    pages = [ROOT / "docs" / "platforms.md", *(ROOT / "docs" / "platforms").iterdir()]
    text = "".join(path.read_text() for path in pages)
    assert [path.name for path in RECIPES.iterdir() if f"`{path.name}" not in text] == []


def test_kubernetes_files_are_what_they_say() -> None:
    """The operator starts the driver again; the Job gives up on the two final exit codes."""
    operator = yaml.safe_load((RECIPES / "spark_operator.yaml").read_text())
    assert (operator["apiVersion"], operator["kind"]) == (
        *("sparkoperator.k8s.io/v1beta2",),
        "SparkApplication",
    )
    spec = operator["spec"]
    assert spec["restartPolicy"]["type"] == "OnFailure"
    assert all(isinstance(value, str) for value in spec["sparkConf"].values())
    job = yaml.safe_load((RECIPES / "kubernetes_job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    rule = job["spec"]["podFailurePolicy"]["rules"][0]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert set(rule["onExitCodes"]["values"]) == FINAL
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never", "the policy needs it"
    assert container["command"][-1] == "--"
    assert spec["executor"]["serviceAccount"] == spec["driver"]["serviceAccount"]
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    executors = "--conf=spark.kubernetes.authenticate.executor.serviceAccountName="
    assert f"{executors}{account}" in container["args"]
    used = set(re.findall(r"\$\((\w+)\)", " ".join(container["args"])))
    assert used == {variable["name"] for variable in container["env"]}


def test_schedulers_do_not_retry_what_is_final() -> None:
    """Python recipes and the unit file name the same exit codes as the command."""
    for name in ("airflow_dag.py", "dagster_assets.py"):
        tree = ast.parse((RECIPES / name).read_text())
        (final,) = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FINAL"
        ]
        assert set(final) == FINAL
    unit = ConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(RECIPES / "nightly.service")
    assert set(map(int, unit["Service"]["RestartPreventExitStatus"].split())) == FINAL


def test_the_dbt_project_is_whole() -> None:
    """References lead to models, and tests to columns; dbt runs inside the block."""
    project = RECIPES / "dbt"
    settings = yaml.safe_load((project / "dbt_project.yml").read_text())
    profiles = yaml.safe_load((project / "profiles.yml").read_text())
    profile = profiles[settings["profile"]]
    assert profile["outputs"][profile["target"]]["method"] == "session"
    models = {path.stem: path.read_text() for path in (project / "models").glob("*.sql")}
    for text in models.values():
        assert set(re.findall(r'ref\("(\w+)"\)', text)) <= set(models)
    described = yaml.safe_load((project / "models" / "schema.yml").read_text())["models"]
    assert {model["name"] for model in described} <= set(models)
    program = (RECIPES / "dbt_nightly.py").read_text()
    assert f'"{project.name}"' in program
    block = program.partition("with shuffle.transparent():")[2]
    assert 'dbt("run", source)' in block
    assert 'dbt("test", source)' in block


def test_the_command_says_the_same_exit_codes() -> None:
    """Its help lists them."""
    text = CliRunner().invoke(app, ["run", "--help"]).output
    for code in FINAL:
        assert re.search(rf"^\s+{code}  ", text, re.M)


def test_every_key_is_a_setting() -> None:
    """The list of keys has each field of `Settings` in Spark's spelling."""
    assert len([k for k in known_keys() if k.startswith(PREFIX + "settings.")]) == len(
        fields(Settings)
    )
